# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The registry in etcd.

    /radixshmem/<cluster id>/node/<node name>   a Member, under its lease: there while it lives
                             rank/<rank>        the node name for which the rank is reserved
                             epoch/<key>        a counter

Ranks and names are claimed in one transaction. A name whose server died is free when its lease has
run out, or at once for a server on the same machine, which sees that the process is gone.
"""

from __future__ import annotations

import contextlib
import math
import random
import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from .etcd_client import EtcdClient, NotFound, decode, encode, prefix_end
from .process_identity import has_died, lives, this_process
from .registry import (
    EpochFloor,
    Member,
    RankOwner,
    RegistryOptions,
    RegistryUnavailable,
    check_registry_name,
    choose_rank,
    name_taken,
    note_rank,
)

__all__ = ["EtcdRegistry"]

_CONTENTION_S = 20.0  # a claim that loses against others tries again for so long
_CONTENTION_WAIT_S = 0.02
_HOLDER_WAIT_S = 0.2  # between two looks whether a name is free
_LEASE_GRACE_S = 1.5  # etcd looks for leases that have run out every half second


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    member: Member
    process: str  # see process_identity


class _Node(msgspec.Struct, frozen=True):
    record: _Record
    revision: int


class EtcdRegistry:
    """A `Registry` in etcd."""

    def __init__(
        self, endpoints: Sequence[str], cluster_id: str, ttl_s: float, options: RegistryOptions
    ) -> None:
        self._etcd = EtcdClient(endpoints, options)
        root = f"/radixshmem/{cluster_id}/"
        self._root, self._nodes = root, f"{root}node/"
        self._ranks, self._epochs = f"{root}rank/", f"{root}epoch/"
        self._ttl_s = ttl_s
        self._lease = 0
        self._joined: Member | None = None
        self._last_rank: int | None = None
        self._listed: dict[str, _Node | None] = {}
        self._revision = 0  # of the last listing
        self._floor = EpochFloor()
        self._guard = threading.RLock()
        self._closing = threading.Event()

    def join(self, node: str, instance: int, address: str, port: int) -> Member:
        check_registry_name("node_name", node)
        wanted = Member(
            node=node,
            rank=0,
            instance=instance,
            address=address,
            port=port,
            joined_s=time.time(),
        )
        lease = 0
        for _ in self._tries(_CONTENTION_S, f"claiming a rank for {node!r}"):
            nodes, owners = self._wait_for_name(wanted)
            lease = lease or self._grant()
            others = {n.record.member.rank for name, n in nodes.items() if name != node}
            owned = {rank: owner for rank, (owner, _) in owners.items()}
            rank = choose_rank(node, owned, others, self._last_rank)
            member = msgspec.structs.replace(wanted, rank=rank)
            try:
                claimed = self._claim(member, lease, nodes.get(node), owners.get(rank))
            except NotFound:
                lease = 0  # it ran out meanwhile
                continue
            if claimed:
                break
        with self._guard:
            note_rank(node, self._last_rank, member.rank)
            self._lease, self._joined, self._last_rank = lease, member, member.rank
            self._forget_listing()
        return member

    def renew(self) -> bool:
        with self._guard:
            lease, joined = self._lease, self._joined
        if joined is None or not lease:
            return False
        answer = self._etcd.post("/lease/keepalive", {"ID": lease})
        if int(answer.get("result", {}).get("TTL", 0)) > 0:
            return self._joined is not None
        self._lost(joined)
        return False

    def members(self) -> list[Member]:
        return self.members_and_epochs()[0]

    def members_and_epochs(self) -> tuple[list[Member], dict[str, int]]:
        with self._guard:
            stored = self._list()
            members = [node.record.member for node in self._listed.values() if node is not None]
            joined = self._joined
        if joined is not None and joined not in members:
            self._lost(joined)
        return sorted(members, key=lambda member: member.rank), self._restore(stored)

    def epoch(self, key: str) -> int:
        return self.members_and_epochs()[1].get(key, 0)

    def raise_epoch(self, key: str, above: int = 0) -> int:
        self._floor.raise_to({key: above})
        for _ in self._tries(_CONTENTION_S, f"raising the epoch of {key!r}"):
            now, revision = self._stored_epoch(key)
            raised = self._floor.raise_to({key: now})[key] + 1
            if self._put_epoch(key, raised, revision):
                break
        return self._floor.raise_to({key: raised})[key]

    def wait_change(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        watch = {
            "key": encode(self._root),
            "range_end": prefix_end(self._root),
            "start_revision": self._revision + 1,
        }
        if self._etcd.watch(watch, timeout_s):
            return True
        self._closing.wait(max(0.0, deadline - time.monotonic()))
        return False

    def leave(self) -> None:
        with self._guard:
            lease, self._lease, self._joined = self._lease, 0, None
        if lease:
            with contextlib.suppress(NotFound):
                self._etcd.post("/lease/revoke", {"ID": lease})

    def close(self) -> None:
        self._closing.set()
        self._etcd.close()

    # ------------------------------------------------------------ joining

    def _wait_for_name(
        self, wanted: Member
    ) -> tuple[dict[str, _Node], dict[int, tuple[RankOwner, int]]]:
        """Nodes and owners of ranks, once no other living server has the name. Or NameTaken."""
        deadline = time.monotonic() + self._ttl_s + _LEASE_GRACE_S
        while True:
            nodes, owners = self._nodes_and_owners()
            holder = nodes.get(wanted.node)
            if holder is None or holder.record.member.instance == wanted.instance:
                return nodes, owners
            if has_died(holder.record.process):
                return nodes, owners
            elsewhere = holder.record.process != this_process()
            if (elsewhere and lives(holder.record.process)) or time.monotonic() > deadline:
                raise name_taken(holder.record.member)
            if self._closing.wait(_HOLDER_WAIT_S):
                raise RegistryUnavailable("the registry was closed while a name was waited for")

    def _nodes_and_owners(self) -> tuple[dict[str, _Node], dict[int, tuple[RankOwner, int]]]:
        """All living nodes by name; the owner of each rank with the revision of its key."""
        answer = self._etcd.transact([], [self._range(self._nodes), self._range(self._ranks)])
        nodes, ranks = (_pairs(part["response_range"]) for part in answer["responses"])
        owners = {}
        for key, value, revision in ranks:
            rank = key[len(self._ranks) :]
            if rank.isdecimal():
                owners[int(rank)] = RankOwner(value.decode(), revision), revision
        found = {key[len(self._nodes) :]: _node(value, rev) for key, value, rev in nodes}
        return {name: node for name, node in found.items() if node is not None}, owners

    def _claim(
        self,
        member: Member,
        lease: int,
        holder: _Node | None,
        owner: tuple[RankOwner, int] | None,
    ) -> bool:
        """One transaction; False if somebody else has changed the name or the rank meanwhile."""
        node_key = self._nodes + member.node
        rank_key = f"{self._ranks}{member.rank}"
        conditions = [
            _unchanged(node_key, holder.revision if holder else 0),
            _unchanged(rank_key, owner[1] if owner else 0),  # each join writes it
        ]
        record = msgspec.json.encode(_Record(member=member, process=this_process()))
        puts = [_put(node_key, record, lease), _put(rank_key, member.node)]
        return bool(self._etcd.transact(conditions, puts).get("succeeded"))

    def _grant(self) -> int:
        return int(self._etcd.post("/lease/grant", {"TTL": math.ceil(self._ttl_s), "ID": 0})["ID"])

    def _lost(self, joined: Member) -> None:
        with self._guard:
            if self._joined is joined:
                self._joined = None

    def _tries(self, limit_s: float, what: str) -> Any:
        """Yields until the caller breaks; RegistryUnavailable after `limit_s`."""
        deadline = time.monotonic() + limit_s
        while True:
            yield
            if time.monotonic() > deadline:
                raise RegistryUnavailable(
                    f"{what} lost against others for {limit_s:g} s; try again"
                )
            self._closing.wait(random.uniform(0, _CONTENTION_WAIT_S))

    # ------------------------------------------------------------ listing

    def _list(self) -> dict[str, int]:
        """Bring `_listed` up to date; the stored epochs.

        Only what has changed since the last listing is read: what was listed, and what has changed,
        contains all that there is, so it is the same if it is as many.
        """
        for _ in range(2):
            changed = self._range(self._nodes, min_mod_revision=self._revision + 1)
            answer = self._etcd.transact([], [changed, self._range(self._epochs)])
            nodes, epochs = (part["response_range"] for part in answer["responses"])
            revision = int(answer["header"]["revision"])
            for key, value, modified in _pairs(nodes):
                self._listed[key] = _node(value, modified)
            complete = len(self._listed) == int(nodes.get("count", 0))
            if complete and revision >= self._revision:
                self._revision = revision
                return self._epochs_of(epochs)
            self._forget_listing()
        raise RegistryUnavailable("etcd lists another number of nodes than it counts; is it etcd?")

    def _forget_listing(self) -> None:
        self._listed, self._revision = {}, 0

    def _epochs_of(self, epochs: dict[str, Any]) -> dict[str, int]:
        return {
            key[len(self._epochs) :]: int(value)
            for key, value, _ in _pairs(epochs)
            if value.isdigit()
        }

    # ------------------------------------------------------------ epochs

    def _restore(self, stored: dict[str, int]) -> dict[str, int]:
        """What holds; epochs that etcd has lost are written again."""
        highest = self._floor.raise_to(stored)
        for key, epoch in highest.items():
            if stored.get(key, 0) < epoch:
                now, revision = self._stored_epoch(key)
                if now < epoch:
                    self._put_epoch(key, epoch, revision)  # lost against another: next time
        return highest

    def _stored_epoch(self, key: str) -> tuple[int, int]:
        """The epoch in etcd and the revision of its key, (0, 0) if there is none."""
        answer = self._etcd.post("/kv/range", {"key": encode(self._epochs + key)})
        for _, value, revision in _pairs(answer):
            return (int(value) if value.isdigit() else 0), revision
        return 0, 0

    def _put_epoch(self, key: str, epoch: int, revision: int) -> bool:
        full = self._epochs + key
        answer = self._etcd.transact([_unchanged(full, revision)], [_put(full, str(epoch))])
        return bool(answer.get("succeeded"))

    def _range(self, prefix: str, **more: int) -> dict[str, Any]:
        return {"request_range": {"key": encode(prefix), "range_end": prefix_end(prefix), **more}}


def _unchanged(key: str, revision: int) -> dict[str, Any]:
    """The condition that `key` was last written at `revision`; 0: that it does not exist."""
    target = {"target": "MOD", "mod_revision": revision}
    return {"key": encode(key), "result": "EQUAL", **target}


def _put(key: str, value: str | bytes, lease: int = 0) -> dict[str, Any]:
    return {"request_put": {"key": encode(key), "value": encode(value), "lease": lease}}


def _pairs(answer: dict[str, Any]) -> list[tuple[str, bytes, int]]:
    """(key, value, revision) of a range."""
    return [
        (decode(kv["key"]).decode(), decode(kv.get("value", "")), int(kv["mod_revision"]))
        for kv in answer.get("kvs", [])
    ]


def _node(value: bytes, revision: int) -> _Node | None:
    """None for a record that this version cannot read: not a member for it."""
    try:
        return _Node(msgspec.json.decode(value, type=_Record), revision)
    except msgspec.MsgspecError:
        return None
