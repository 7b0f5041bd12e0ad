# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Engines in processes of their own, which a test may kill.

They are forked from a process that has imported vLLM and done nothing else: starting one takes
seconds instead of half a minute.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.connection import Connection
from typing import Any

from e2e.vllm_offload.engines import Engine, Prompt

_START_S = 180.0
_ANSWER_S = 120.0

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(
    ["vllm", "vllm.v1.engine.core", "vllm.v1.worker.cpu_worker", "vllm.model_executor.models.llama"]
)


class Replica:
    """Another engine. `ask` does one of the functions below there, and waits for its answer."""

    def __init__(self, model: str, server: str) -> None:
        self._connection, theirs = _processes.Pipe()
        self._process = _processes.Process(target=_serve, args=(theirs, model, server), daemon=True)
        self._process.start()
        theirs.close()

    def hear(self, deadline_s: float = _ANSWER_S) -> Any:
        assert self._connection.poll(deadline_s), f"no answer within {deadline_s} s"
        return self._connection.recv()

    def wait_started(self) -> None:
        assert self.hear(_START_S) == "started"

    def tell(self, what: str, *arguments: Any) -> None:
        self._connection.send((what, arguments))

    def ask(self, what: str, *arguments: Any) -> Any:
        self.tell(what, *arguments)
        return self.hear()

    def kill(self) -> None:
        """SIGKILL, and wait. Harmless when it has ended."""
        self._process.kill()
        self._process.join(30)
        assert self._process.exitcode is not None
        self._connection.close()


def _serve(connection: Connection, model: str, server: str) -> None:
    engine = Engine(model, server)
    connection.send("started")
    while True:
        try:
            what, arguments = connection.recv()
        except EOFError:
            os._exit(0)
        connection.send(_ORDERS[what](engine, connection, *arguments))


def _generate(engine: Engine, _: Connection, prompts: list[Prompt]) -> Any:
    return engine.generate(prompts)


def _store(engine: Engine, _: Connection, prompts: list[Prompt]) -> None:
    engine.store(prompts)


def _stop_inside(engine: Engine, connection: Connection, kind: str) -> None:
    """The next store or load writes half of its slots, tells that, and goes no further."""
    worker = engine.worker

    def stop(_: int, *specs: Any) -> bool:
        slots = next(spec.slots for spec in specs if hasattr(spec, "slots"))
        store = worker._client.store
        assert store is not None
        for slot in slots.tolist():
            if kind == "store":
                store.write_slot(slot, b"\xee" * (len(store.slot_view(slot)) // 2))
        connection.send(slots.tolist())
        threading.Event().wait(_ANSWER_S)  # killed here
        os._exit(1)

    setattr(worker, f"submit_{kind}", stop)


def _load(
    engine: Engine, connection: Connection, prompts: list[Prompt], want: list[list[int]]
) -> tuple[int, int]:
    """Generate until the next order: rounds, and how many of them had other tokens than `want`."""
    rounds = wrong = 0
    while not connection.poll():
        tokens, _ = engine.generate(prompts)
        wrong += tokens != want
        rounds += 1
        engine.forget()
    connection.recv()
    return rounds, wrong


_ORDERS: dict[str, Any] = {
    "generate": _generate,
    "store": _store,
    "stop inside": _stop_inside,
    "load": _load,
}
