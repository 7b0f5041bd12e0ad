# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What registries are made of: ranks, epochs, names of processes, options."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from radixshmem_core.cluster.process_identity import has_died, lives, this_process
from radixshmem_core.cluster.registry import (
    MAX_RANKS,
    EpochFloor,
    RankOwner,
    RegistryOptions,
    RegistryUnavailable,
    choose_rank,
    open_registry,
)
from radixshmem_core.errors import RadixError

FULL = {rank: RankOwner(f"n{rank}", age=MAX_RANKS - rank) for rank in range(MAX_RANKS)}


def test_first_rank_is_0_and_gaps_are_filled() -> None:
    assert choose_rank("a", {}, set(), None) == 0
    assert choose_rank("c", {0: RankOwner("a", 1), 2: RankOwner("b", 2)}, {0, 2}, None) == 1


def test_a_rank_of_a_node_that_is_gone_is_left_to_it() -> None:
    assert choose_rank("b", {0: RankOwner("a", 1)}, set(), None) == 1
    assert choose_rank("a", {0: RankOwner("a", 1)}, set(), None) == 0


def test_a_reserved_rank_that_another_lives_under_is_not_taken() -> None:
    assert choose_rank("a", {0: RankOwner("a", 1)}, {0}, 0) == 1


def test_the_rank_had_before_is_asked_for_when_nothing_is_stored() -> None:
    assert choose_rank("a", {}, set(), 7) == 7
    assert choose_rank("a", {}, {7}, 7) == 0
    assert choose_rank("a", {7: RankOwner("b", 1)}, set(), 7) == 0


def test_when_all_are_reserved_the_one_gone_longest_gives_way() -> None:
    assert choose_rank("new", FULL, set(range(1000, MAX_RANKS)), None) == 999
    assert choose_rank("n5", FULL, set(), None) == 5


def test_more_members_than_ranks_are_refused() -> None:
    with pytest.raises(RadixError, match=r"1023 living members.*--cluster-id"):
        choose_rank("new", FULL, set(range(MAX_RANKS)), None)


def test_an_epoch_never_falls() -> None:
    floor = EpochFloor()
    assert floor.raise_to({"a": 3}) == {"a": 3}
    assert floor.raise_to({"a": 1, "b": 2}) == {"a": 3, "b": 2}
    assert floor.raise_to({}) == {"a": 3, "b": 2}


def test_a_process_is_known_to_live_or_to_have_died() -> None:
    assert lives(this_process())
    assert not has_died(this_process())
    program = "from radixshmem_core.cluster.process_identity import *; print(this_process())"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout
    assert has_died(other.strip())
    assert not lives(other.strip())


def test_a_process_id_that_was_given_again_is_another_process() -> None:
    place, pid, start = this_process().split("/")
    assert has_died(f"{place}/{pid}/{int(start) - 1}")


def test_a_process_that_waits_for_its_parent_has_died() -> None:
    child = subprocess.Popen(["true"])
    place, _, start = this_process().split("/")
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert has_died(f"{place}/{child.pid}/{start}")
    child.wait()


@pytest.mark.parametrize("process", ["", "x", "else:1/1/1", "a/b/c", "//", "x/-1/2", "/9" * 40])
def test_nothing_is_said_of_processes_elsewhere(process: str) -> None:
    assert not lives(process)
    assert not has_died(process)


def test_a_process_of_this_place_with_an_impossible_id_is_not_known() -> None:
    place = this_process().split("/")[0]
    assert not lives(f"{place}/{2**70}/1")
    assert not has_died(f"{place}/{2**70}/1")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://x", "registry is 'http://x'; use etcd://"),
        ("file://relative", "registry is 'file://relative'"),
        ("", "registry is ''"),
    ],
)
def test_unknown_urls_are_refused(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_registry(url)


def test_a_cluster_id_is_a_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--cluster-id"):
        open_registry(f"file://{tmp_path}", cluster_id="a/b")


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RadixError, match=r"file/default/members .*--registry file:///path"):
        open_registry(f"file://{tmp_path}/file")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (RegistryOptions(etcd_user="a"), "--etcd-user and --etcd-password-file"),
        (RegistryOptions(etcd_password_file="/p"), "--etcd-user and --etcd-password-file"),
        (RegistryOptions(etcd_user="a", etcd_password_file="/no"), "--etcd-password-file /no"),
        (RegistryOptions(etcd_ca_file="/no"), "--etcd-ca-file /no cannot be read"),
        (RegistryOptions(etcd_key_file="/no"), "--etcd-cert-file and --etcd-key-file"),
        (
            RegistryOptions(etcd_key_file=__file__, etcd_cert_file=__file__),
            "--etcd-cert-file needs --etcd-ca-file",
        ),
    ],
)
def test_options_of_etcd_that_do_not_fit_are_refused(
    options: RegistryOptions, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        open_registry("etcd://127.0.0.1:1", options=options)


def test_a_forked_child_does_not_keep_a_member_alive(tmp_path: Path) -> None:
    registry = open_registry(f"file://{tmp_path}")
    registry.join("a", 1, "127.0.0.1", 1)
    context = multiprocessing.get_context("fork")
    running, end = context.Event(), context.Event()

    def wait() -> None:
        running.set()
        end.wait(30)

    child = context.Process(target=wait)
    child.start()
    try:
        assert running.wait(30)
        registry.close()
        other = open_registry(f"file://{tmp_path}")
        assert other.members() == []
        other.close()
    finally:
        end.set()
        child.join(30)


def test_a_directory_that_cannot_be_used_is_a_registry_that_does_not_answer(tmp_path: Path) -> None:
    registry = open_registry(f"file://{tmp_path}")
    registry.join("a", 1, "127.0.0.1", 1)
    state = tmp_path / "default" / "state.json"
    state.unlink()
    state.symlink_to(state)  # cannot be followed
    with pytest.raises(RegistryUnavailable, match="cannot be used"):
        registry.wait_change(0)
    with pytest.raises(RegistryUnavailable, match="cannot be used"):
        registry.members_and_epochs()
    registry.close()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\0" * 100])
def test_a_state_file_that_is_none_is_made_anew(tmp_path: Path, content: bytes) -> None:
    a = open_registry(f"file://{tmp_path}", cluster_id="c")
    a.join("a", 1, "127.0.0.1", 1)
    a.raise_epoch("model")
    (tmp_path / "c" / "state.json").write_bytes(content)
    b = open_registry(f"file://{tmp_path}", cluster_id="c")
    assert b.join("b", 2, "127.0.0.1", 2).rank == 1
    assert a.members_and_epochs()[1] == {"model": 1}  # a living member knows it
    os.mkfifo(tmp_path / "c" / "members" / "pipe")  # a record that nobody would ever write
    assert [member.node for member in b.members()] == ["a", "b"]
    a.close()
    b.close()
