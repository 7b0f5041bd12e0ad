# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The thread that connects a client to its peers may outlive the client's index for a moment."""

from __future__ import annotations

from pathlib import Path

from e2e.cluster.nodes import cluster


def test_connections_of_a_closed_client_are_none(region_name: str, tmp_path: Path) -> None:
    with cluster(region_name, tmp_path) as made:
        a, b = made.start(0), made.start(1)
        made.settle_reads(a, b)
        connections = a.client._now.connections
        assert connections is not None
        assert len(connections.peers.connections()) == 2
        a.client.close()
        assert connections.peers.connections() == []
