# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""`ServerConfig`: everything a radix-server can be told.

The fields are the one list of options: `radixshmem_core.options` makes the command line flags and
the keys of the TOML file from them.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from .sizes import parse_size

__all__ = ["ServerConfig", "check_name", "check_text"]

_NAME = re.compile(r"/[A-Za-z0-9_.\-]+")
_TAKEN_SUFFIXES = (".live", ".sock")
_MAX_NAME = 200  # a file name holds 255 bytes, and suffixes are added
_REGISTRY = re.compile(r"etcd://[^/,\s]+:\d+(,[^/,\s]+:\d+)*|file:///\S*")
_PORT_RANGE = re.compile(r"(\d+)-(\d+)")
_MAX_PORT = 65535


def _option(default: Any, group: str, help_text: str, **extra: Any) -> Any:
    metadata = {"group": group, "help": help_text, **extra}
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def _local(default: Any, help_text: str, **extra: Any) -> Any:
    return _option(default, "server", help_text, **extra)


def _cluster(default: Any, help_text: str, **extra: Any) -> Any:
    return _option(default, "cluster", help_text, **extra)


def _data_plane(default: Any, help_text: str, **extra: Any) -> Any:
    return _option(default, "data plane", help_text, **extra)


@dataclasses.dataclass(slots=True)
class ServerConfig:
    """Options of one radix-server. Sizes may be text ("64G"); they are stored as numbers."""

    name: str = _local(dataclasses.MISSING, 'name of the cache, starts with "/"')
    data_bytes: int | str | None = _local(
        None, "bytes of all slots, e.g. 64G; absent: an index only, see index_slots", size=True
    )
    index_slots: int = _local(0, "slots of an index-only server")
    swa_ratio: float = _local(0.0, "share of data_bytes for sliding-window slots")
    mamba_ratio: float = _local(0.0, "share of data_bytes for mamba checkpoint slots")
    slot_align: int = _local(
        4096, "slot strides are multiples of this; a client may choose its own"
    )
    data_name: str = _local("", "name of the slot region; default: <name>_data")
    endpoint: str = _local("", "control socket; default: unix:///dev/shm/<name>.sock")
    group: str = _local("", "group that may use the cache (mode 0660); default: only you (0600)")
    hugepage_path: str = _local("", "mounted hugetlbfs directory for the slots")
    prefault: bool = _local(True, "touch all memory in the background after start")
    background_evict_ratio: float = _local(0.05, "share kept free ahead of demand; 0 turns it off")
    eviction: str = _local("lru", "which unpinned blocks go first", choices=("lru",))
    register_chunk_tokens: int = _local(4096, "tokens per published chunk")
    kvevent_ring_capacity: int = _local(0, "entries of the ring for KV events; 0: no KV events")
    max_nodes: int = _local(0, "upper bound of tree nodes; 0: as many as the slots can need")
    max_clients: int = _local(256, "clients that may be attached at the same time")
    max_pins: int = _local(8192, "pins that one client may hold")
    lock_timeout_s: float = _local(1.0, "a writer gives up (BUSY) after waiting this long")
    quarantine_s: float = _local(2.0, "how long slots of a process that cannot be watched wait")
    status_interval_s: float = _local(60.0, "seconds between status lines in the log; 0: none")

    expected_min_nodes: int = _cluster(0, "nodes to wait for before ready")
    registry: str = _cluster("", "etcd://host:port[,host:port] or file:///path")
    cluster_id: str = _cluster("", "name of the cluster in the registry")
    cluster_token_file: str = _cluster("", "file with the secret that members share")
    node_name: str = _cluster("", "name of this node; default: the host name")
    etcd_user: str = _cluster("", "user of etcd")
    etcd_password_file: str = _cluster("", "file with the password of etcd_user")
    etcd_ca_file: str = _cluster("", "CA certificate of etcd: turns TLS on")
    etcd_cert_file: str = _cluster("", "client certificate for etcd")
    etcd_key_file: str = _cluster("", "key of etcd_cert_file")
    rpc_address: str = _cluster("", "address that peers reach")
    rpc_interface: str = _cluster("", "interface whose address peers reach; wins over rpc_address")
    rpc_port: int = _cluster(0, "port that peers reach; 0: one of port_range")
    port_range: str = _cluster("17100-17399", "ports to choose from")
    settle_ms: int = _cluster(500, "membership must be quiet this long before keys move")
    bootstrap_timeout_s: float = _cluster(60.0, "report missing nodes after this time")
    index_dev: str = _cluster("", "RDMA device for index reads; without it none is used")
    gid_idx: int = _cluster(-1, "GID index of the RDMA devices; -1: chosen")
    index_transport: str = _cluster(
        "auto", "how peers' indexes are read", choices=("auto", "verbs", "tcp", "shm")
    )
    directory_bytes: int | str = _cluster(0, "memory of the directory; 0: chosen", size=True)
    directory_replicas: int = _cluster(1, "copies of each directory entry, 1 or 2")
    query_timeout_us: int = _cluster(0, "deadline of a remote lookup; 0: by transport")

    transfer_backend: str = _data_plane(
        "auto", "what moves slots", choices=("auto", "mooncake", "nixl", "builtin")
    )
    transfer_dev: tuple[str, ...] = _data_plane((), "devices to move slots over")
    transfer_protocol: str = _data_plane("", "rdma or tcp", choices=("", "rdma", "tcp"))
    transfer_ip: str = _data_plane("", "address of the data plane")
    transfer_port: int = _data_plane(0, "port of the data plane; 0: chosen")
    max_inflight: int = _data_plane(256, "transfers at the same time")
    max_pending_jobs: int = _data_plane(4096, "pull jobs waiting at the server")
    job_ttl_s: float = _data_plane(60.0, "life of a finished job nobody asked for")

    def __post_init__(self) -> None:
        if self.data_bytes is not None:
            self.data_bytes = parse_size(self.data_bytes, "data_bytes")
        self.directory_bytes = parse_size(self.directory_bytes, "directory_bytes")
        self.transfer_dev = _split_names("transfer_dev", self.transfer_dev)
        self.validate()

    @property
    def slot_region_bytes(self) -> int | None:
        """`data_bytes` as a number; None for an index-only server."""
        return None if self.data_bytes is None else int(self.data_bytes)

    def ports(self) -> range:
        """`port_range` as numbers."""
        first, last = self.port_range.split("-")
        return range(int(first), int(last) + 1)

    def validate(self) -> None:
        """ValueError naming the first field whose value cannot be used."""
        check_name("name", self.name)
        if self.data_name:
            check_name("data_name", self.data_name)
        if self.data_name == self.name:
            raise ValueError(f"data_name is {self.data_name!r}, the same as name; choose another")
        self._check_types()
        self._check_budget()
        self._check_ranges()
        self._check_cluster()

    def _check_types(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in ("data_bytes", "directory_bytes", "transfer_dev"):
                continue
            wanted = type(field.default) if field.name != "name" else str
            fits = isinstance(value, (int, float) if wanted is float else wanted)
            if not fits or (isinstance(value, bool) and wanted is not bool):
                raise ValueError(f"{field.name} is {value!r}; it must be a {wanted.__name__}")
            if wanted is str:
                check_text(field.name, value)
            choices = field.metadata.get("choices")
            if choices and value not in choices:
                allowed = ", ".join(repr(c) for c in choices if c)
                raise ValueError(f"{field.name} is {value!r}; it must be one of {allowed}")

    def _check_budget(self) -> None:
        size = self.slot_region_bytes
        if size is None and self.index_slots == 0:
            raise ValueError(
                "neither data_bytes nor index_slots is given; set data_bytes (e.g. 64G) for a "
                "cache with slots, or index_slots for an index only"
            )
        if size is not None and self.index_slots:
            raise ValueError(
                f"data_bytes ({size}) and index_slots ({self.index_slots}) exclude each other; "
                "with data_bytes the number of slots follows from the geometry"
            )
        if size is not None and size < 4096:
            raise ValueError(f"data_bytes is {size}; not one slot fits, give at least 4096 bytes")
        if self.swa_ratio + self.mamba_ratio >= 1:
            raise ValueError(
                f"swa_ratio {self.swa_ratio} + mamba_ratio {self.mamba_ratio} leave nothing for "
                "full slots; their sum must be below 1"
            )

    def _check_ranges(self) -> None:
        limits: dict[str, tuple[float, float]] = {
            "index_slots": (0, 2**30 - 1),
            "swa_ratio": (0, 1),
            "mamba_ratio": (0, 1),
            "slot_align": (1, 2**30),
            "background_evict_ratio": (0, 0.5),
            "register_chunk_tokens": (1, 2**31),
            "kvevent_ring_capacity": (0, 2**26),
            "max_nodes": (0, 2**30),
            "max_clients": (1, 65535),
            "max_pins": (16, 2**20),
            "lock_timeout_s": (0.05, 3600),
            "quarantine_s": (0.01, 3600),
            "status_interval_s": (0, 1e9),
            "expected_min_nodes": (0, 65535),
            "rpc_port": (0, _MAX_PORT),
            "settle_ms": (0, 3_600_000),
            "bootstrap_timeout_s": (0, 1e9),
            "gid_idx": (-1, 255),
            "directory_replicas": (1, 2),
            "query_timeout_us": (0, 60_000_000),
            "transfer_port": (0, _MAX_PORT),
            "max_inflight": (1, 65536),
            "max_pending_jobs": (1, 2**20),
            "job_ttl_s": (0.1, 1e9),
        }
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if not low <= value <= high:  # also refuses NaN
                raise ValueError(f"{name} is {value}; it must be between {low} and {high}")

    def _check_cluster(self) -> None:
        if self.registry and _REGISTRY.fullmatch(self.registry) is None:
            raise ValueError(
                f"registry is {self.registry!r}; use etcd://host:port[,host:port] or file:///path"
            )
        if self.expected_min_nodes > 1 and not self.registry:
            raise ValueError(
                f"expected_min_nodes is {self.expected_min_nodes}, but there is no registry "
                "through which nodes could find each other; give --registry, or leave it out"
            )
        if self.registry and self.index_transport == "verbs" and not self.index_dev:
            raise ValueError(
                "index_transport is 'verbs', but no RDMA device is named; give --index-dev"
            )
        alone = self.transfer_backend == "builtin" and self.transfer_protocol == "rdma"
        if self.registry and alone and not self.transfer_dev:
            raise ValueError(
                "transfer_protocol is 'rdma' for the data plane builtin, but no RDMA device is "
                "named; give --transfer-dev"
            )
        ports = _PORT_RANGE.fullmatch(self.port_range)
        if ports is None or not 0 < int(ports[1]) <= int(ports[2]) <= _MAX_PORT:
            raise ValueError(f"port_range is {self.port_range!r}; use first-last, e.g. 17100-17399")

    def without_effect(self) -> list[str]:
        """Names of fields that were set although nothing reads them."""
        unread = {"max_nodes"}
        if not self.registry:  # a server on its own
            unread |= {f.name for f in dataclasses.fields(self) if f.metadata["group"] != "server"}
        return [
            field.name
            for field in dataclasses.fields(self)
            if field.name in unread and getattr(self, field.name) != field.default
        ]


def _split_names(what: str, value: object) -> tuple[str, ...]:
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, (list, tuple)) or not all(isinstance(item, str) for item in listed):
        raise ValueError(f"{what} is {value!r}; give names, or one text with commas")
    return tuple(name.strip() for item in listed for name in item.split(",") if name.strip())


def check_text(what: str, value: object) -> None:
    """ValueError for what no file name or group can be."""
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"{what} is {value!r}; it must be a str without NUL characters")


def check_name(what: str, name: str) -> None:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ValueError(
            f'{what} is {name!r}; it must start with "/" and go on with letters, digits, "_", "-" '
            'or "." (no further "/"), e.g. /my_kv_cache'
        )
    if name in ("/.", "/.."):
        raise ValueError(f"{what} is {name!r}, which is a folder; choose another name")
    if name.endswith(_TAKEN_SUFFIXES):
        raise ValueError(
            f"{what} is {name!r}; names that end in {' or '.join(_TAKEN_SUFFIXES)} are those of "
            "other files of a server, choose another"
        )
    if len(name) > _MAX_NAME:
        raise ValueError(f"{what} has {len(name)} characters; at most {_MAX_NAME} are allowed")
