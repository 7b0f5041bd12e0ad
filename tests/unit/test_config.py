# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
from __future__ import annotations

import argparse
import dataclasses
import re
from pathlib import Path

import pytest

from radixshmem_core.config import ServerConfig
from radixshmem_core.options import add_config_flags, config_from_flags, load_config
from radixshmem_core.sizes import format_size, parse_size

CONFIGS = Path(__file__).parents[2] / "configs"


def parse(*flags: str) -> ServerConfig:
    parser = argparse.ArgumentParser()
    add_config_flags(parser)
    return config_from_flags(parser.parse_args(flags))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64G", 64 << 30),
        ("1.5T", 3 << 39),
        ("4096", 4096),
        (4096, 4096),
        ("10 MiB", 10 << 20),
        ("2kb", 2048),
        ("0.5K", 512),
    ],
)
def test_sizes_are_powers_of_1024(text: int | str, size: int) -> None:
    assert parse_size(text, "data_bytes") == size


@pytest.mark.parametrize("text", ["", "G", "64X", "-1", "1e9", "1.2.3G", None, True, 1.5])
def test_other_sizes_are_refused_by_name(text: object) -> None:
    with pytest.raises(ValueError, match="data_bytes"):
        parse_size(text, "data_bytes")  # type: ignore[arg-type]


def test_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        parse_size(-1, "data_bytes")


def test_sizes_beyond_64_bits_are_refused_by_name() -> None:
    digits = "9" * 400
    for size in (digits, digits + "G", "9" * 5000 + ".5", "8192P", 2**63, 10**5000):
        with pytest.raises(ValueError, match=r"data_bytes is .{1,60}; it must be below 8192P"):
            ServerConfig("/x", data_bytes=size)  # type: ignore[arg-type]


def test_format_size() -> None:
    assert [format_size(n) for n in (0, 1023, 1536, 5 << 30, 3 << 49)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 GiB",
        "1.5 PiB",
    ]


def test_defaults() -> None:
    config = ServerConfig("/x", data_bytes="64G")
    assert config.data_bytes == 64 << 30
    assert (config.slot_align, config.register_chunk_tokens) == (4096, 4096)
    assert (config.max_pins, config.lock_timeout_s, config.quarantine_s) == (8192, 1, 2)
    assert (config.background_evict_ratio, config.prefault) == (0.05, True)
    assert config.without_effect() == []


def test_replace_validates_again() -> None:
    config = ServerConfig("/x", data_bytes="64G")
    assert dataclasses.replace(config, swa_ratio=0.25).data_bytes == 64 << 30
    with pytest.raises(ValueError, match="swa_ratio"):
        dataclasses.replace(config, swa_ratio=1.5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "x"}, "name is 'x'; it must start with \"/\""),
        ({"name": "/a/b"}, "name is '/a/b'"),
        ({"name": "/"}, "name is '/'"),
        ({"name": "/."}, "name is '/.', which is a folder"),
        ({"data_name": "/.."}, "data_name is '/..', which is a folder"),
        ({"name": "/" + "a" * 300}, "301 characters"),
        ({"name": "/a\0b"}, "name is '/a\\x00b'"),
        ({"endpoint": "unix:///tmp/a\0b"}, "endpoint is 'unix:///tmp/a\\x00b'; it must be a str"),
        ({"group": "a\0b"}, "group is 'a\\x00b'; it must be a str without NUL"),
        ({"hugepage_path": "/a\0b"}, "hugepage_path is '/a\\x00b'"),
        ({"data_name": "y"}, "data_name is 'y'"),
        ({"data_name": "/x"}, "the same as name"),
        ({"data_bytes": None}, "neither data_bytes nor index_slots"),
        ({"data_bytes": "64M", "index_slots": 5}, "exclude each other"),
        ({"data_bytes": 100}, "data_bytes is 100; not one slot fits"),
        ({"swa_ratio": 0.6, "mamba_ratio": 0.4}, "leave nothing for full slots"),
        ({"swa_ratio": float("nan")}, "swa_ratio is nan"),
        ({"max_pins": 0}, "max_pins is 0"),
        ({"max_pins": "many"}, "max_pins is 'many'; it must be a int"),
        ({"prefault": 1}, "prefault is 1"),
        ({"slot_align": True}, "slot_align is True"),
        ({"eviction": "random"}, "eviction is 'random'; it must be one of 'lru'"),
        ({"directory_replicas": 3}, "directory_replicas is 3"),
        ({"port_range": "9-1"}, "port_range is '9-1'"),
        ({"transfer_protocol": "udp"}, "transfer_protocol is 'udp'"),
        ({"transfer_dev": 5}, "transfer_dev is 5"),
        ({"transfer_dev": ["a", 5]}, "transfer_dev is ['a', 5]"),
        ({"registry": "zookeeper://h"}, "use etcd://"),
        ({"expected_min_nodes": 2}, "give --registry"),
    ],
)
def test_bad_values_are_refused_with_the_value(fields: dict[str, object], message: str) -> None:
    values: dict[str, object] = {"name": "/x", "data_bytes": "64M", **fields}
    with pytest.raises(ValueError, match=re.escape(message)):
        ServerConfig(**values)  # type: ignore[arg-type]


def test_fields_without_effect_are_named() -> None:
    config = ServerConfig("/x", data_bytes="64M", rpc_port=17200, max_nodes=5, transfer_dev="a,b")
    assert config.without_effect() == ["max_nodes", "rpc_port", "transfer_dev"]
    assert config.transfer_dev == ("a", "b")


def test_every_field_is_a_flag() -> None:
    parser = argparse.ArgumentParser()
    add_config_flags(parser)
    flags = {flag for action in parser._actions for flag in action.option_strings}
    for field in dataclasses.fields(ServerConfig):
        assert "--" + field.name.replace("_", "-") in flags
    assert len(parser.format_help()) > 2000


def test_flags_set_fields() -> None:
    config = parse(
        *("--name", "/x", "--data-bytes", "1.5T", "--no-prefault", "--swa-ratio", "0.25"),
        *("--transfer-dev", "mlx5_0,mlx5_1", "--transfer-dev", "mlx5_2", "--max-pins", "16"),
    )
    assert config.data_bytes == 3 << 39
    assert config.prefault is False
    assert (config.swa_ratio, config.max_pins) == (0.25, 16)
    assert config.transfer_dev == ("mlx5_0", "mlx5_1", "mlx5_2")


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text('name = "/from_file"\ndata_bytes = "1G"\nmax_pins = 70\nquarantine_s = 3\n')
    config = parse("--config", str(path), "--data-bytes", "2G")
    assert (config.name, config.data_bytes, config.max_pins) == ("/from_file", 2 << 30, 70)
    assert config.quarantine_s == 3


def test_unknown_key_is_an_error_with_near_names(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text('name = "/x"\ndata-byte = "1G"\n')
    with pytest.raises(ValueError, match=r"unknown key 'data-byte'; did you mean data_bytes"):
        load_config(path)


def test_broken_or_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot read the config file"):
        load_config(tmp_path / "absent.toml")
    (tmp_path / "bad.toml").write_text("name = ")
    with pytest.raises(ValueError, match="is not a TOML file"):
        load_config(tmp_path / "bad.toml")


def test_a_name_is_needed() -> None:
    with pytest.raises(ValueError, match="no name is given"):
        parse("--data-bytes", "1G")


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_ready_made_config_loads_without_dead_options(path: Path) -> None:
    config = parse("--config", str(path))
    assert config.name.startswith("/")
    assert config.without_effect() == []


def test_there_are_ready_made_configs() -> None:
    names = {path.stem for path in CONFIGS.glob("*.toml")}
    assert {"small_test", "single_node", "hybrid_model", "cluster", "cluster_one_machine"} <= names
