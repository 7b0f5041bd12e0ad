# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""One engine process on one node of the cluster demo: serves its share of a trace.

Prints a line of JSON, the numbers so far, after each request: a worker that is killed has said what
it did.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from engine import Engine
from engine_numbers import EngineNumbers
from traces import TraceSource

import radixshmem

_TIMEOUT_S = 60.0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--slot-bytes", type=int, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    arguments = parser.parse_args()
    trace = TraceSource("", arguments.requests, 0).read()
    geometry = radixshmem.Geometry(
        trace.block_tokens, arguments.slot_bytes, fingerprint="radixshmem cluster demo"
    )
    with radixshmem.RadixClient(arguments.server, geometry) as client:
        client.wait_ready(_TIMEOUT_S)
        _await_peers(client, arguments.nodes)
        engine = Engine(client, trace, arguments.slot_bytes, look_at_peers=True)
        print(json.dumps({"ready": True}), flush=True)
        sys.stdin.readline()  # all begin together
        for request in range(arguments.number, len(trace), arguments.workers):
            engine.serve(request)
            print(json.dumps(_numbers(engine.numbers, client)), flush=True)
    return 0


def _await_peers(client: radixshmem.RadixClient, nodes: int) -> None:
    """Until this process reads all nodes, itself included."""
    deadline = time.monotonic() + _TIMEOUT_S
    while len(_read(client)) < nodes:
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {len(_read(client))} of {nodes} nodes are read")
        time.sleep(0.05)


def _read(client: radixshmem.RadixClient) -> list[str]:
    """The transports of all nodes that are read."""
    transports = [str(row["transport"]) for row in client.peer_connections()]
    return [transport for transport in transports if transport]


def _numbers(numbers: EngineNumbers, client: radixshmem.RadixClient) -> dict[str, object]:
    figures = client.lookup_figures()
    return {
        "requests": numbers.requests,
        "referenced": numbers.referenced,
        "hit": numbers.hit,
        "remote": numbers.remote,
        "remote_bytes": numbers.remote_bytes,
        "remote_s": numbers.remote_s,
        "wrong_bytes": numbers.wrong_bytes,
        "first_wrong": numbers.first_wrong,
        "lookups": figures["lookups"],
        "lookups_by_rounds": figures["lookups_by_rounds"],
        "transports": sorted(set(_read(client))),
        "failures": client.transfer_failures,
    }


if __name__ == "__main__":
    sys.exit(main())
