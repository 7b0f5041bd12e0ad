# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Client and server processes killed at random moments: nobody hangs, no byte is ever wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

FULL = os.environ.get("RADIX_TEST_FULL") == "1"
CLIENT_KILLS, SERVER_KILLS = (1000, 500) if FULL else (200, 100)


def test_kills_of_clients_and_servers(region_name: str) -> None:
    seed = int(os.environ.get("RADIX_TEST_SEED", "0")) or time.time_ns() % 2**32
    print(f"RADIX_TEST_SEED={seed}")
    script = Path(__file__).with_name("kill_campaign.py")
    counts = (str(CLIENT_KILLS), str(SERVER_KILLS), str(seed))
    done = subprocess.run(
        [sys.executable, str(script), region_name, *counts],
        capture_output=True,
        text=True,
        timeout=1200 if FULL else 300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    print(report)
    assert (report["client_kills"], report["server_kills"]) == (CLIENT_KILLS, SERVER_KILLS)
    assert report["adoptions"] >= SERVER_KILLS // 3  # others died at their start, or met no client
    assert report["operations"] > CLIENT_KILLS
    assert report["hit_blocks"] > CLIENT_KILLS
