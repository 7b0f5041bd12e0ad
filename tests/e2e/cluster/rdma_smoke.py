# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
r"""Two servers whose indexes and slots are read over RDMA alone; a program, for rdma_tests.sh.

Usage: RADIX_TEST_RDMA_DEVICE=rxe0 RADIX_TEST_RDMA_LINK=dummy0 PYTHONPATH=tests \
    python -m e2e.cluster.rdma_smoke
It uses no pytest: where a machine is emulated, each import takes a while.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from e2e.cluster.nodes import Cluster, Node, cluster
from e2e.harness import eventually, path_hashes

from radixshmem_core.cluster.rdma import open_device

_BEGIN = time.monotonic()
DEVICE = os.environ["RADIX_TEST_RDMA_DEVICE"]
BLOCKS = 2000  # 8 MB of slots: more than one piece
DEADLINE_S = 60.0


def say(what: str) -> None:
    print(f"python: {what}, {time.monotonic() - _BEGIN:.1f} s", flush=True)


def check_errors() -> None:
    for name, gid_idx, parts in (
        ("no_such_device", -1, ["no RDMA device no_such_device", DEVICE]),
        (DEVICE, 99, ["gid_idx 99", "::ffff:10.77.0.1"]),
    ):
        said = ""
        try:
            open_device(name, gid_idx)
        except ValueError as error:
            said = str(error)
        assert all(part in said for part in parts), said


def start(made: Cluster, number: int) -> Node:
    return made.start(
        number,
        data_bytes="16M",
        index_transport="verbs",
        index_dev=DEVICE,
        transfer_protocol="rdma",
        transfer_dev=(DEVICE, f"{DEVICE}:1"),  # one device as two rails
        query_timeout_us=2_000_000,
    )


def row_of(a: Node, b: Node) -> dict[str, Any]:
    """How b reads a."""
    return next(row for row in b.client.peer_connections() if row["rank"] == a.rank)


def pull(a: Node, b: Node, seed: int) -> None:
    path = a.put(BLOCKS, seed)
    a.flush()
    eventually(lambda: b.client.query(path).common_hit == BLOCKS, "the path is found", DEADLINE_S)
    result = b.client.pull_async(path).wait(DEADLINE_S)
    assert (result.common_hit, result.remote_blocks) == (BLOCKS, BLOCKS), result
    assert b.wrong(path, result.full_slots) == 0
    result.finalize()


def check_transport(a: Node, b: Node) -> None:
    """That nothing came another way."""
    row = row_of(a, b)
    assert (row["transport"], row["why"]) == ("verbs", "RDMA to it works"), row
    assert row["reads"] > 0, row
    owner, puller = (node.server.status()["cluster"] for node in (a, b))
    assert [DEVICE in text for text in owner["verbs"]["devices"]] == [True] * 3, owner["verbs"]
    assert owner["responder"]["reads"] == 0, owner["responder"]  # reads over streams
    [slots] = [each for each in puller["slots_of_peers"] if each["rank"] == a.rank]
    assert slots["readers"], slots
    assert set(slots["readers"]) <= {f"verbs {DEVICE}", f"verbs {DEVICE}:1"}, slots
    say(f"index and slots over {owner['verbs']['devices'][0]}")


def interrupt(a: Node, b: Node) -> None:
    """Take the link down, which breaks connections and removes all GIDs, and up again."""
    link = ["ip", "link", "set", os.environ["RADIX_TEST_RDMA_LINK"]]
    subprocess.run([*link, "down"], check=True)
    path = path_hashes(BLOCKS, 99)  # of nobody: to look for it reads the directory

    def broken() -> bool:
        b.client.query(path)
        return not b.reads(a)

    eventually(broken, "the interruption is noticed", DEADLINE_S)
    eventually(lambda: row_of(a, b)["why"].startswith("not verbs: "), "it says why", DEADLINE_S)
    say(row_of(a, b)["why"].splitlines()[0])
    subprocess.run([*link, "up"], check=True)
    eventually(lambda: b.reads(a), "the peer is read again", DEADLINE_S)


def main() -> None:
    say("imported")
    check_errors()
    with tempfile.TemporaryDirectory() as folder, cluster("/rdma_smoke", Path(folder)) as made:
        a, b = start(made, 0), start(made, 1)
        say("two servers run")
        eventually(lambda: a.reads(b) and b.reads(a), "both read each other", DEADLINE_S)
        pull(a, b, seed=0)
        say(f"{BLOCKS} blocks pulled")
        check_transport(a, b)
        interrupt(a, b)
        pull(a, b, seed=1)
        check_transport(a, b)
    say("ended")


if __name__ == "__main__":
    main()
