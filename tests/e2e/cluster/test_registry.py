# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The contract of a registry, on each kind of it."""

from __future__ import annotations

import itertools
import logging
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from e2e.cluster.backends import SHORT_S, Backend, JoinerProcess, kept
from e2e.harness import eventually

from radixshmem_core.cluster.registry import Member, NameTaken, Registry

Start = Callable[..., JoinerProcess]


def nodes(registry: Registry) -> list[str]:
    return [member.node for member in registry.members()]


def test_who_joins_is_listed_until_it_leaves(backend: Backend) -> None:
    a, b = backend.open(), backend.open()
    assert a.members() == []
    first = a.join("a", 2**64 - 1, "10.0.0.1", 17100)
    second = b.join("b", 2, "fd00::2", 65535)
    assert (first.node, first.rank, first.instance) == ("a", 0, 2**64 - 1)
    assert (second.rank, second.address, second.port) == (1, "fd00::2", 65535)
    assert a.members() == b.members() == [first, second]
    assert a.renew()
    a.leave()
    assert a.members() == b.members() == [second]
    assert not a.renew()


def test_a_rank_is_kept_for_its_name(backend: Backend) -> None:
    a, b = backend.open(), backend.open()
    a.join("a", 1, "127.0.0.1", 1)
    a.leave()
    assert b.join("b", 2, "127.0.0.1", 2).rank == 1
    assert backend.open().join("a", 3, "127.0.0.1", 3).rank == 0


def test_joining_again_keeps_the_rank_and_tells_the_new_address(backend: Backend) -> None:
    a = backend.open()
    a.join("a", 1, "127.0.0.1", 1)
    again = a.join("a", 1, "127.0.0.2", 2)
    assert a.members() == [again]
    assert (again.rank, again.address) == (0, "127.0.0.2")
    assert a.renew()


def test_eight_at_once_get_eight_ranks(backend: Backend) -> None:
    registries = [backend.open() for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        joined = list(
            pool.map(lambda i: registries[i].join(f"n{i}", i, "127.0.0.1", i + 1), range(8))
        )
    assert sorted(member.rank for member in joined) == list(range(8))
    assert registries[0].members() == sorted(joined, key=lambda member: member.rank)


def test_a_killed_process_is_gone_within_the_lease(backend: Backend, start_joiner: Start) -> None:
    backend.ttl_s = SHORT_S
    watcher = backend.open()
    process = start_joiner(backend, "a")
    assert process.rank() == 0
    assert nodes(watcher) == ["a"]
    process.kill()
    if backend.url.startswith("file"):
        assert nodes(watcher) == []
    else:
        eventually(lambda: nodes(watcher) == [], "gone", backend.ttl_s + 5)


def test_a_restarted_process_has_its_name_and_rank_at_once(
    backend: Backend, start_joiner: Start
) -> None:
    process = start_joiner(backend, "a")
    assert process.rank() == 0
    process.kill()
    begin = time.monotonic()
    restarted = backend.open().join("a", 2, "127.0.0.1", 2)
    assert time.monotonic() - begin < backend.ttl_s  # it has not waited for the lease
    assert restarted.rank == 0
    assert backend.open().members() == [restarted]


def test_two_living_servers_cannot_have_one_name(backend: Backend, start_joiner: Start) -> None:
    assert start_joiner(backend, "a", port=77).rank() == 0
    second = backend.open()
    with pytest.raises(NameTaken, match=r"'a' is taken .*127\.0\.0\.1:77.*--node-name"):
        second.join("a", 2, "127.0.0.1", 2)
    assert [(m.node, m.port) for m in second.members()] == [("a", 77)]
    assert not second.renew()
    assert second.join("b", 2, "127.0.0.1", 2).rank == 1


def test_a_name_is_taken_also_within_one_process(backend: Backend) -> None:
    backend.ttl_s = SHORT_S
    first = backend.open()
    member = first.join("a", 1, "127.0.0.1", 1)
    with kept(first), pytest.raises(NameTaken, match="--node-name"):
        backend.open().join("a", 2, "127.0.0.1", 2)
    assert first.members() == [member]


def test_closing_without_leaving_looks_like_a_crash(backend: Backend) -> None:
    backend.ttl_s = SHORT_S
    a, b = backend.open(), backend.open()
    a.join("a", 1, "127.0.0.1", 1)
    a.close()
    eventually(lambda: b.members() == [], "gone", backend.ttl_s + 5)
    assert b.join("b", 2, "127.0.0.1", 2).rank == 1  # rank 0 stays reserved


def test_a_lost_registration_is_noticed_and_made_again(backend: Backend) -> None:
    a = backend.open()
    a.join("a", 1, "127.0.0.1", 1)
    backend.drop("a")
    assert a.members() == []
    assert not a.renew()
    assert a.join("a", 1, "127.0.0.1", 1).rank == 0
    assert nodes(a) == ["a"]
    assert a.renew()


def test_a_wiped_registry_heals_and_gives_another_rank_if_it_must(
    fragile_backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    a, b, new = (fragile_backend.open() for _ in range(3))
    a.join("a", 1, "127.0.0.1", 1)
    b.join("b", 2, "127.0.0.1", 2)
    assert a.raise_epoch("model") == 1
    assert a.raise_epoch("model") == 2
    fragile_backend.wipe()
    assert not a.renew()
    assert not b.renew()
    assert new.join("new", 3, "127.0.0.1", 3).rank == 0
    assert b.join("b", 2, "127.0.0.1", 2).rank == 1
    with kept(new), kept(b), caplog.at_level(logging.WARNING):
        assert a.join("a", 1, "127.0.0.1", 1).rank == 2
        assert "'a' has rank 2 now: its rank 0" in caplog.text
        assert nodes(a) == nodes(b) == nodes(new) == ["new", "b", "a"]
        assert a.epoch("model") == 2
    assert new.members_and_epochs()[1] == {"model": 2}
    assert new.raise_epoch("model") == 3
    assert new.raise_epoch("model", above=100) == 101
    assert new.raise_epoch("model", above=7) == 102


def test_epochs_rise_by_one_for_each_raise(backend: Backend) -> None:
    registries = [backend.open() for _ in range(4)]
    assert registries[0].epoch("m") == 0

    def raise_ten(registry: Registry) -> list[int]:
        return [registry.raise_epoch("m") for _ in range(10)]

    with ThreadPoolExecutor(4) as pool:
        raised = list(pool.map(raise_ten, registries))
    assert all(series == sorted(series) for series in raised)
    assert sorted(itertools.chain(*raised)) == list(range(1, 41))
    assert [registry.epoch("m") for registry in registries] == [40] * 4


def test_epochs_have_keys_of_any_text(backend: Backend) -> None:
    registry = backend.open()
    keys = ["", "a/b c", "é\n", "x" * 300]
    for count, key in enumerate(keys, 1):
        for _ in range(count):
            registry.raise_epoch(key)
    assert backend.open().members_and_epochs() == ([], dict(zip(keys, range(1, 5), strict=True)))


@pytest.mark.parametrize("change", ["join", "leave", "crash", "epoch"])
def test_a_wait_ends_with_a_change(backend: Backend, start_joiner: Start, change: str) -> None:
    if change == "crash":
        backend.ttl_s = SHORT_S
    watcher, other = backend.open(), backend.open()
    other.join("other", 1, "127.0.0.1", 1)
    process = start_joiner(backend, "a")
    process.rank()
    changes = {
        "join": lambda: backend.open().join("b", 3, "127.0.0.1", 3),
        "leave": other.leave,
        "crash": process.kill,
        "epoch": lambda: other.raise_epoch("m"),
    }
    with kept(other), ThreadPoolExecutor(1) as pool:
        watcher.members()
        waiting = pool.submit(watcher.wait_change, 20.0)
        changes[change]()
        assert waiting.result()
        watcher.members()
        assert not watcher.wait_change(0.3)


def test_a_change_before_the_wait_is_not_missed(backend: Backend) -> None:
    watcher = backend.open()
    watcher.members()
    backend.open().join("b", 3, "127.0.0.1", 3)
    assert watcher.wait_change(20.0)


def test_closing_ends_a_wait(backend: Backend) -> None:
    watcher = backend.open()
    watcher.members()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(watcher.wait_change, 60.0)
        while not waiting.running():
            time.sleep(0.01)
        watcher.close()
        assert not waiting.result(20.0)


def test_no_clocks_are_compared(
    backend: Backend, start_joiner: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.ttl_s = SHORT_S
    ahead = start_joiner(backend, "ahead", clock_off_s=1e6)
    behind = start_joiner(backend, "behind", clock_off_s=-1e6)
    assert {ahead.rank(), behind.rank()} == {0, 1}
    monkeypatch.setattr(time, "time", lambda: random.uniform(0, 4e9))
    registry = backend.open()
    registry.join("wild", 1, "127.0.0.1", 1)
    with kept(registry):
        assert sorted(nodes(registry)) == ["ahead", "behind", "wild"]
        with pytest.raises(NameTaken):
            backend.open().join("ahead", 2, "127.0.0.1", 2)
        ahead.kill()
        eventually(lambda: "ahead" not in nodes(registry), "gone", backend.ttl_s + 5)
        assert sorted(nodes(registry)) == ["behind", "wild"]


@pytest.mark.parametrize("name", ["", "a b", "a/b", "../x", "-a", "ä", "x" * 201])
def test_a_bad_node_name_is_refused(backend: Backend, name: str) -> None:
    with pytest.raises(ValueError, match="--node-name"):
        backend.open().join(name, 1, "127.0.0.1", 1)


def test_many_changes_are_listed_as_by_a_fresh_look(backend: Backend) -> None:
    seed = random.getrandbits(32)
    dice = random.Random(seed)
    registries: dict[str, Registry] = {f"n{i}": backend.open() for i in range(4)}
    watcher = backend.open()
    there: dict[str, Member] = {}
    for step in range(40):
        node = dice.choice(sorted(registries))
        if dice.random() < 0.5:
            registries[node].leave()
            there.pop(node, None)
        else:
            port = dice.randrange(65536)
            there[node] = registries[node].join(node, int(node[1:]), "127.0.0.1", port)
        for name in there:
            registries[name].renew()
        if dice.random() < 0.6:
            expected = sorted(there.values(), key=lambda member: member.rank)
            assert watcher.members() == expected, (seed, step)
