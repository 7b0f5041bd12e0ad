# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Servers on a machine whose /dev/shm is nearly too small: 32 MiB, in a mount namespace."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from e2e.harness import CLIENT_PRELUDE, why_not_unshare

_MOUNT = 'mount -t tmpfs -o size=32M none /dev/shm && exec "$0" "$@"'
_SMALL_SHM = ("unshare", "--mount", "sh", "-c", _MOUNT)


REASON = why_not_unshare(_SMALL_SHM)
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)


def run_with_small_shm(program: str) -> list[str]:
    prelude = (
        CLIENT_PRELUDE
        + """
from radixshmem_core.config import ServerConfig
from radixshmem_core.errors import RadixError
from radixshmem_core.server import RadixServer
"""
    )
    done = subprocess.run(
        [*_SMALL_SHM, sys.executable, "-c", prelude + program, "/small"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_slots_that_leave_no_room_for_an_index_are_refused_at_start() -> None:
    [told, left] = run_with_small_shm("""
try:
    RadixServer(ServerConfig(name, data_bytes="20M")).start()
except RadixError as error:
    say(error)
say(os.listdir("/dev/shm"))
""")
    wanted = r"20\.0 MiB of slots \(data_bytes\) and \d\d\.\d MiB of index for one slot or more \("
    assert re.match(f"/small: {wanted}", told)
    assert re.search(
        r" need \d+ bytes .*, but /dev/shm has only 33554432 bytes \(32\.0 MiB\)", told
    )
    assert left == "[]"


def test_server_takes_a_geometry_that_fits_after_one_that_did_not() -> None:
    [told, mode, ready, hit] = run_with_small_shm("""
with RadixServer(ServerConfig(name, data_bytes="2M")) as server:
    try:
        RadixClient(name, Geometry(16, 16, slot_align=1))
    except RadixError as error:
        say(error)
    say(server.info().mode, os.path.exists("/dev/shm/small_data"))
    with RadixClient(name, geometry) as client:
        say(client.status().mode, repr(client.status().last_error))
        client.insert(hashes(5), client.allocate_slots(5))
        say(client.query(hashes(5)).common_hit)
""")
    wanted = r"2\.0 MiB of slots \(data_bytes\) and \d\d\.\d MiB of index for 131,072 slots \("
    assert re.match(f"/small: {wanted}.* need .* but /dev/shm has only", told)
    assert (mode, ready, hit) == ("failed False", "ready ''", "5")
