# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What all Python tests share: unique region names, nothing left in /dev/shm, known skips only."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

_SHM = Path("/dev/shm")
_ALLOWED_SKIPS = Path(__file__).parent / "allowed_skips.txt"
_PREFIX = f"radixtest-{os.getpid()}-"
_counter = itertools.count()

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell's background jobs ignore it, and the processes that tests start would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def region_name() -> Iterator[str]:
    """A name no other test uses; the test fails if it leaves a file of that name behind."""
    yield from _fresh_name()


@pytest.fixture(scope="module")
def module_region() -> Iterator[str]:
    """A name that the tests of one file share."""
    yield from _fresh_name()


def _fresh_name() -> Iterator[str]:
    name = f"/{_PREFIX}{next(_counter)}-"
    yield name
    left = sorted(path.name for path in _SHM.glob(f"{name[1:]}*"))
    for file in left:
        (_SHM / file).unlink()
    assert not left, f"left in {_SHM}: {left}"


def _allowed_skips() -> list[str]:
    lines = _ALLOWED_SKIPS.read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


class _SkipGuard:
    """Fails the run when a test was skipped whose id starts with no line of allowed_skips.txt."""

    def __init__(self) -> None:
        self.unlisted: list[str] = []

    def see(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        skipped = report.skipped and not hasattr(report, "wasxfail")
        if skipped and not report.nodeid.startswith(tuple(_allowed_skips())):
            self.unlisted.append(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.see(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.see(report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.unlisted and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.unlisted:
            terminalreporter.section("skips not listed in tests/allowed_skips.txt", red=True)
            for nodeid in self.unlisted:
                terminalreporter.line(nodeid)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_SkipGuard(), "radix-skip-guard")
