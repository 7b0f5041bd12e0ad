# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
from __future__ import annotations

import pytest

from radixshmem_core.pull import OpenJobs, PullJob


class Local:
    """Stands for the QueryResult of the local query."""

    status = 0
    common_hit = 3
    full_slots = (4, 5, 6)
    swa_start = 1
    swa_slots = (7, 8)
    mamba = (0, 9)

    def __init__(self) -> None:
        self.finalized = 0

    def finalize(self) -> None:
        self.finalized += 1


def make_job(local: Local, open_jobs: OpenJobs) -> PullJob:
    return PullJob(local, open_jobs, 0)  # type: ignore[arg-type]


def test_result_shows_the_local_query() -> None:
    local, open_jobs = Local(), OpenJobs(2)
    job = make_job(local, open_jobs)
    assert job.done()
    assert (job.local_hit, job.planned_hit) == (3, 3)
    assert len(open_jobs) == 1
    result = job.wait(0)
    assert len(open_jobs) == 0
    assert (result.common_hit, result.full_slots) == (3, (4, 5, 6))
    assert (result.swa_start, result.swa_slots, result.mamba) == (1, (7, 8), (0, 9))
    assert (result.remote_blocks, result.remote_bytes, result.source_rank) == (0, 0, 0)
    result.finalize()
    assert local.finalized == 1
    assert "local_hit=3, done" in repr(job)
    assert "common_hit=3" in repr(result)


def test_job_ids_differ() -> None:
    assert make_job(Local(), OpenJobs(2)).job_id != make_job(Local(), OpenJobs(2)).job_id


def test_cancel_unpins_and_wait_refuses() -> None:
    local, open_jobs = Local(), OpenJobs(2)
    job = make_job(local, open_jobs)
    job.cancel()
    job.cancel()
    assert local.finalized > 0
    assert len(open_jobs) == 0
    with pytest.raises(RuntimeError, match=f"pull job {job.job_id} was cancelled"):
        job.wait()


def test_dropped_job_is_no_longer_open() -> None:
    open_jobs = OpenJobs(2)
    job = make_job(Local(), open_jobs)
    assert len(open_jobs) == 1
    del job
    assert len(open_jobs) == 0


def test_done_callback_is_called_at_once(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[PullJob] = []
    job = make_job(Local(), OpenJobs(2))
    job.add_done_callback(seen.append)
    assert seen == [job]

    def fails(job: PullJob) -> None:
        raise KeyError("boom")

    job.add_done_callback(fails)
    assert "a done callback of pull job" in caplog.text
