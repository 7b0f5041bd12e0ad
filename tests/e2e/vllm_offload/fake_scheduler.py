# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""vLLM's scheduler and workers in small: real calls to a real manager and server, in microseconds.

It makes the calls of vLLM's OffloadingConnectorScheduler through a real RadixShmemConnector, in the
order of vLLM 0.30 to 0.32 or, with `end_last`, in that of 0.33, and asserts of each answer what
vLLM relies on. Workers write bytes that name their block and rank, as late as they may; each load
is compared with them.

`step` is one engine step. What goes wrong in it is said before: `abort`, `preempt`, `reset`, and
the attributes `no_room`, `slow_jobs`, `failing_stores`, `failing_loads`.
"""

from __future__ import annotations

from typing import Any

from e2e.vllm_offload.fake_lookup import hit_blocks
from e2e.vllm_offload.fake_request import Job, Plan, Report, Request
from e2e.vllm_offload.slot_bytes import BLOCK_TOKENS, FULL, MAMBA, MODELS, SWA, WINDOW, Workers
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.v1.kv_offload.base import ScheduleEndContext
from vllm.v1.outputs import KVConnectorOutput

from radixshmem.integrations.vllm_offload import RadixShmemConnector
from radixshmem.integrations.vllm_offload.manager import RadixShmemManager
from radixshmem.integrations.vllm_offload.transfer import SlotSpec, WorkerMetadata

_DRAIN_STEPS = 50


class FakeScheduler:
    """Attributes that vLLM's own class has as well are used by the connector."""

    def __init__(
        self,
        model: str,
        manager: RadixShmemManager,
        workers: Workers,
        *,
        end_last: bool = False,
        lag: int = 0,
    ) -> None:
        self.manager = manager
        self.kinds = MODELS[model]
        self.end_last = end_last
        self.lag = lag  # so many steps are planned before the workers do the first of them
        self.requests: dict[str, Request] = {}
        self.no_room = False
        self.slow_jobs = 0
        self.failing_stores = 0
        self.failing_loads = 0
        self.server_may_go = False
        self.workers = workers
        self._connector: Any = RadixShmemConnector.__new__(RadixShmemConnector)
        self._connector.connector_scheduler = self
        self._connector.connector_worker = None
        self._connector._preempted = {}
        self._connector._bounding_group_ids = ()
        self._tracked: dict[str, Request] = {}
        self._gpu: set[bytes] = set()  # vLLM's own prefix cache
        self._loading_keys: set[bytes] = set()
        self._jobs: dict[int, Job] = {}  # known to the scheduler
        self._count = 0
        self._stale = 0
        self._fence: set[int] = set()
        self._new_loads: dict[int, Job] = {}
        self._flush: set[int] = set()
        self._preempted: list[str] = []
        self._finished: list[str] = []
        self._deferred: dict[int, Job] = {}  # stores of the last step
        self._running_jobs: dict[int, Job] = {}  # in the workers
        self._plans: list[Plan] = []  # that the workers have not seen
        if end_last:
            manager.quarantine.told_of_flush = True

    # ------------------------------------------------------------ what a test does

    def add(self, request: Request) -> Request:
        request.next_stored = [0] * len(self.kinds)
        self.requests[request.request_id] = request
        self._connector.on_new_request(request)
        return request

    def abort(self, request: Request) -> None:
        """Also how a request ends that has all its tokens."""
        assert request.state != "finished"
        request.state = "finished"
        self._connector.request_finished_all_groups(request, ([],) * len(self.kinds))
        self._finished.append(request.request_id)

    def preempt(self, request: Request) -> None:
        assert request.state == "running"
        request.state = "waiting"
        request.computed = 0
        self._preempted.append(request.request_id)
        request.num_preemptions += 1

    def forget(self) -> None:
        """Empty vLLM's own prefix cache."""
        self._gpu.clear()

    def reset(self) -> None:
        self.forget()
        self._connector.reset_cache()

    def step(self, compute: int = 2) -> None:
        """One engine step, in which each running request computes so many blocks."""
        for request in list(self.requests.values()):
            if request.state == "waiting" and request.request_id not in self._preempted:
                self._admit(request)
        for request in self.requests.values():
            if request.state == "running":
                request.computed = min(request.computed + compute, len(request.blocks))
                self._gpu.update(request.block_hashes[: request.computed])
        self._plans.append(self._plan())
        if len(self._plans) > self.lag:
            self._hear()

    def _hear(self) -> None:
        """The workers have done the first step that was planned."""
        self._take(self._work(self._plans.pop(0)))

    def run(self, request: Request) -> int:
        """Until it has computed everything and ended; how many blocks were loaded for it."""
        for _ in range(_DRAIN_STEPS):
            self.step()
            if request.state == "running" and request.computed == len(request.blocks):
                break
        else:
            raise AssertionError(f"{request.request_id} has not ended in {_DRAIN_STEPS} steps")
        self.abort(request)
        self.drain()
        return request.loaded

    def drain(self) -> None:
        """End all requests, and step as long as vLLM would."""
        for request in self.requests.values():
            if request.state != "finished":
                self.abort(request)
        for _ in range(_DRAIN_STEPS):
            if (
                self._finished
                or self._running_jobs
                or self._deferred
                or self._jobs
                or self._fence
                or self.manager.has_pending_work()
            ):
                self.step()
            elif self._plans:
                self._hear()
            else:
                return
        raise AssertionError(f"work is left after {_DRAIN_STEPS} steps")

    # ------------------------------------------------------------ called by the connector

    def on_new_request(self, request: Request) -> None:
        self._tracked[request.request_id] = request
        with self._lock():
            self.manager.on_new_request(request.context)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int, **_: object
    ) -> tuple[int | None, bool]:
        if self.end_last:
            request.next_stored = [0] * len(self.kinds)
        if request.jobs:
            return None, False
        local = num_computed_tokens // BLOCK_TOKENS
        hit = hit_blocks(
            self.kinds,
            lambda group, block: self.manager.lookup(request.key(group, block), request.context),
            request.num_tokens,
            len(request.block_hashes),
            local,
        )
        if hit and self._loading_keys & set(self._keys_of_load(request, local, local + hit)):
            hit = None
        return (None if hit is None else hit * BLOCK_TOKENS), bool(hit)

    def request_finished(self, request: Request) -> tuple[bool, None]:
        if request.request_id not in self._tracked:
            self.manager.on_new_request(request.context)
            self.manager.on_request_finished(request.context)
        return False, None

    def update_connector_output(self, output: KVConnectorOutput) -> None:
        meta = output.kv_connector_worker_meta
        assert isinstance(meta, OffloadingWorkerMetadata)
        for job_id in meta.completed_jobs:
            if job_id < self._stale:
                self._report_stale(job_id)
                continue
            job = self._jobs.pop(job_id)
            job.request.jobs.remove(job_id)
            with self._lock():
                if job.is_store:
                    self.manager.complete_store(set(job.keys), job.request.context)
                else:
                    self.manager.complete_load(set(job.keys), job.request.context)
                    self._loading_keys.difference_update(job.keys)
            if job.request.told_end and not job.request.jobs:
                del self._tracked[job.request.request_id]

    def reset_cache(self) -> None:
        self._flush |= set(self._jobs)
        for request_id, request in list(self._tracked.items()):
            if request.state == "finished":
                if not request.told_end:
                    self.manager.on_request_finished(request.context)
                del self._tracked[request_id]
        self.manager.reset_cache()
        for request in self._tracked.values():
            request.next_stored = [0] * len(self.kinds)
            request.jobs.clear()
        self._stale = self._count
        self._fence |= set(self._jobs)
        if self.end_last and not self._fence:
            self.manager.on_reset_flushed()
        self._jobs.clear()
        self._loading_keys.clear()

    # ------------------------------------------------------------ the scheduler

    def _admit(self, request: Request) -> None:
        cached = 0
        while cached < len(request.blocks) and request.block_hashes[cached] in self._gpu:
            cached += 1
        local = min(cached, (request.num_tokens - 1) // BLOCK_TOKENS)
        tokens, later = self._connector.get_num_new_matched_tokens(request, local * BLOCK_TOKENS)
        if tokens is None or self.no_room:
            return
        hit = tokens // BLOCK_TOKENS
        request.computed = local + hit
        request.state = "loading" if later else "running"
        request.loaded = hit
        if not hit:
            return
        keys = self._keys_of_load(request, local, local + hit)
        with self._lock():
            spec = self.manager.prepare_load(keys, request.context)
        assert isinstance(spec, SlotSpec)
        assert not request.jobs
        job_id = self._new_job(request, keys, spec, False)
        self._new_loads[job_id] = self._jobs[job_id]
        self._loading_keys.update(keys)
        request.next_stored = [local + hit] * len(self.kinds)

    def _keys_of_load(self, request: Request, begin: int, end: int) -> list[bytes]:
        keys = []
        for group, kind in enumerate(self.kinds):
            reach = {FULL: end, SWA: WINDOW, MAMBA: 1}[kind]
            keys += [request.key(group, i) for i in range(max(begin, end - reach), end)]
        return keys

    def _plan(self) -> Plan:
        context = ScheduleEndContext([], self._preempted)
        with self._lock():
            if not self.end_last:
                self.manager.on_schedule_end(context)
            for request_id in self._preempted:
                if (request := self._tracked.get(request_id)) is not None:
                    self._flush |= request.jobs - self._new_loads.keys()
            stores: dict[int, Job] = {}
            for request in [*self.requests.values()]:
                ending = request.request_id in self._finished
                if request.state == "running" or ending:
                    self._store(request, stores)
            for request_id in self._finished:
                self._tell_end(self.requests.pop(request_id))
            if self.end_last:
                self.manager.on_schedule_end(context)
        plan = Plan(self._new_loads, stores, self._flush)
        self._new_loads, self._flush = {}, set()
        self._preempted, self._finished = [], []
        return plan

    def _tell_end(self, request: Request) -> None:
        if request.request_id not in self._tracked:
            return
        request.told_end = True
        self.manager.on_request_finished(request.context)
        if not request.jobs:
            del self._tracked[request.request_id]

    def _store(self, request: Request, stores: dict[int, Job]) -> None:
        if request.request_id not in self._tracked:
            return
        if any(not self._jobs[job].is_store for job in request.jobs):
            return  # ended while it loaded
        calls: list[list[bytes]] = [[]]
        tail = (request.num_prompt_blocks * BLOCK_TOKENS + request.tail - 1) // BLOCK_TOKENS
        tail = min(tail, request.num_prompt_blocks)
        for group, kind in enumerate(self.kinds):
            begin, end = request.next_stored[group], request.computed
            wanted = range(begin, end)
            if kind == SWA:  # the window that ends at the last whole block of the prompt
                wanted = range(max(begin, tail - WINDOW), min(end, tail))
            if kind == MAMBA:  # only the state behind the prompt, by a call of its own, first
                last = [tail - 1] if begin < tail <= end else []
                calls[:0] = [[request.key(group, block)] for block in last]
                wanted = range(0)
            calls[-1] += [request.key(group, block) for block in wanted]
            request.next_stored[group] = max(begin, end)
        for keys in filter(None, calls):
            output = self.manager.prepare_store(keys, request.context)
            assert output is not None, "vLLM would offer the same blocks again in each step"
            chosen = set(output.keys_to_store)
            kept = [key for key in keys if key in chosen]  # vLLM's order of the source blocks
            assert kept == list(output.keys_to_store)
            spec = output.store_spec
            assert isinstance(spec, SlotSpec)
            assert len(spec.slots) == len(kept)
            if kept:
                job_id = self._new_job(request, kept, spec, True)
                stores[job_id] = self._jobs[job_id]

    def _new_job(self, request: Request, keys: list[bytes], spec: SlotSpec, store: bool) -> int:
        job_id = self._count
        self._count += 1
        job = Job(request, keys, spec, store)
        if self.slow_jobs:
            self.slow_jobs -= 1
            job.waits = 2
        if store and self.failing_stores:
            self.failing_stores -= 1
            job.fails = True
        if not store and self.failing_loads:
            self.failing_loads -= 1
            job.fails = True
        self._jobs[job_id] = job
        request.jobs.add(job_id)
        return job_id

    def _report_stale(self, job_id: int) -> None:
        if job_id in self._fence:
            self._fence.remove(job_id)
            if self.end_last and not self._fence:
                with self._lock():
                    self.manager.on_reset_flushed()

    def _lock(self) -> Any:
        return self.manager.lock

    # ------------------------------------------------------------ the workers

    def _work(self, plan: Plan) -> Report:
        report = Report()
        running = self._running_jobs
        running.update(self._deferred)
        running.update(plan.loads)
        self._deferred = plan.stores
        for job_id, job in list(running.items()):
            if job.waits and job_id not in plan.flush:
                job.waits -= 1
                continue
            del running[job_id]
            report.done[job_id] = 1
            self._transfer(job, report)
        return report

    def _transfer(self, job: Job, report: Report) -> None:
        if job.is_store:
            if job.fails or not self._done(self.workers.store(job.keys, job.spec)):
                report.failed_slots |= {
                    (int(self.kinds[int.from_bytes(key[-4:], "big")]), slot)
                    for key, slot in zip(job.keys, job.spec.slots.tolist(), strict=True)
                }
            return
        report.received.add(job.request.request_id)
        if job.fails or not self._done(self.workers.load(job.keys, job.spec)):
            report.failed.add(job.request.request_id)

    def _done(self, good: bool) -> bool:
        assert good or self.server_may_go, "a transfer failed, and nothing was wrong"
        return good

    def _take(self, report: Report) -> None:
        """The scheduler hears of a step that has ended."""
        meta = WorkerMetadata(
            completed_jobs=dict(report.done), failed_slots=set(report.failed_slots)
        )
        self._connector.update_connector_output(
            KVConnectorOutput(
                finished_recving=set(report.received),
                failed_recving=set(report.failed),
                kv_connector_worker_meta=meta,
            )
        )
        for request_id in report.received:
            request = self.requests.get(request_id)
            if request is None or request.state != "loading":
                continue
            if request_id in report.failed:  # its blocks are freed, it starts anew
                request.state, request.computed = "waiting", 0
            else:
                request.state = "running"
                self._gpu.update(request.block_hashes[: request.computed])
