# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Never a wrong byte: pulls from owners that evict, stop, die and come back."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e.cluster.soak import Soak

from radixshmem_core.cluster.planes import why_missing


def soaked(
    prefix: str, registry: str, backend: str, count: int, confirm: bool = True
) -> dict[str, int]:
    soak = Soak(prefix, registry, backend, confirm)
    try:
        seen = soak.run(count)
        print(backend, seen, f"stops {soak.stops} kills {soak.kills}")
        assert soak.stops
        assert soak.kills
        return seen
    finally:
        soak.close()


@pytest.mark.parametrize(
    ("backend", "count"),
    [
        ("builtin", 30_000),
        ("mooncake", 2_000),
        ("nixl", 2_000),
        pytest.param("builtin", 90_000, marks=pytest.mark.slow),
        pytest.param("mooncake", 5_000, marks=pytest.mark.slow),
        pytest.param("nixl", 5_000, marks=pytest.mark.slow),
    ],
)
def test_every_pull_yields_right_bytes_or_fewer_blocks(
    region_name: str, tmp_path: Path, backend: str, count: int
) -> None:
    missing = why_missing(backend)
    if missing:
        pytest.skip(missing)
    seen = soaked(region_name, f"file://{tmp_path}", backend, count)
    assert seen["wrong"] == 0
    assert seen["pulls"] >= count
    assert seen["remote_blocks"] > count  # most of the pulls brought something
    assert seen["leases_lost"] > 0  # and some transfers were too late


@pytest.mark.slow
def test_the_soak_sees_what_a_missing_check_of_the_lease_does(
    region_name: str, tmp_path: Path
) -> None:
    seen = soaked(region_name, f"file://{tmp_path}", "builtin", 3_000, confirm=False)
    assert seen["wrong"] > 0
