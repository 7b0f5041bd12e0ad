# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import socket
import struct
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from e2e.harness import DEADLINE_S, eventually

from radixshmem_core.config import ServerConfig
from radixshmem_core.control import ControlSocket
from radixshmem_core.errors import GeometryMismatch, RadixError, ServerNotReady
from radixshmem_core.host import check_directories, clear_stale_socket
from radixshmem_core.messages import (
    MAX_MESSAGE_BYTES,
    Configure,
    Hello,
    Info,
    InfoReply,
    Reply,
    Request,
    WaitReady,
)
from radixshmem_core.rpc import (
    ProtocolError,
    ask,
    ask_info,
    ask_patiently,
    connect,
    exchange,
    failure_of,
    frame,
    socket_path,
)

INFO = Info(
    mode="waiting",
    last_error="",
    index_name="/x",
    rank=0,
    world_size=1,
    data_plane="",
    geometry=None,
    hugepage_path="",
    uptime=1.0,
    version="0",
)


async def no_pulls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    raise ProtocolError("no pulls here")


def tracebacks(error: BaseException) -> int:
    """How many a user sees for it."""
    return "".join(traceback.format_exception(error)).count("Traceback (most recent call last)")


class Server:
    """A control socket in a thread that answers every request with INFO."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.endings = threading.Semaphore(0)

    async def handle(self, request: Request, peer: socket.socket) -> Reply:
        if isinstance(request, Configure):
            raise GeometryMismatch("server 1, client 2")
        if isinstance(request, WaitReady):
            await asyncio.Event().wait()
        return InfoReply(info=INFO)

    @contextmanager
    def running(self) -> Iterator[Server]:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        control = ControlSocket(self.path, self.handle, no_pulls, self.endings.release)
        try:
            asyncio.run_coroutine_threadsafe(control.open(0o600, -1), loop).result(5)
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(control.close(), loop).result(5)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(5)
            loop.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(str(tmp_path / "control.sock")).running() as running:
        yield running


def test_request_and_reply(server: Server) -> None:
    assert ask_info(server.path, Hello(), 5) == INFO
    assert os.stat(server.path).st_mode & 0o777 == 0o600


def test_several_requests_on_one_connection(server: Server) -> None:
    body = msgspec.msgpack.encode(Hello())
    with connect(server.path, 5) as connection:
        connection.sendall(2 * (struct.pack("<I", len(body)) + body))
        answer = connection.recv(4)
        assert 0 < struct.unpack("<I", answer)[0] < 1000


def test_failures_are_raised_at_the_client(server: Server) -> None:
    with pytest.raises(GeometryMismatch, match="server 1, client 2"):
        ask(server.path, Configure(geometry={}), 5)


@pytest.mark.parametrize(("timeout_s", "error"), [(0.2, TimeoutError), (0, ServerNotReady)])
def test_a_server_that_takes_no_connection(
    tmp_path: Path, timeout_s: float, error: type[Exception]
) -> None:
    path = str(tmp_path / "control.sock")
    with contextlib.ExitStack() as waiting:
        listener = waiting.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listener.bind(path)
        listener.listen(0)
        waiting.enter_context(connect(path, 5))
        with pytest.raises(error, match=re.escape(path)):
            connect(path, timeout_s)


def in_time() -> Callable[[], None]:
    """Fails when it is called after the deadline of a test."""
    end = time.monotonic() + DEADLINE_S

    def check() -> None:
        assert time.monotonic() < end

    return check


class Busy(Server):
    """Answers a geometry after so many other requests; those only while it is not stopped."""

    def __init__(self, path: str, others: int, stopped: bool) -> None:
        super().__init__(path)
        self.others = others
        self.stopped = stopped
        self.done = asyncio.Event()

    async def handle(self, request: Request, peer: socket.socket) -> Reply:
        if isinstance(request, Configure) or self.stopped:
            await self.done.wait()
        self.others -= 1
        if self.others == 0:
            self.done.set()
        return InfoReply(info=INFO)


def test_a_server_that_is_busy_is_waited_for(tmp_path: Path) -> None:
    with Busy(str(tmp_path / "control.sock"), 3, stopped=False).running() as server:
        assert ask_patiently(server.path, Configure(geometry={}), 0.2, in_time()) == INFO
        assert server.others < 0


def test_a_server_that_is_stopped_while_busy_is_not_waited_for(tmp_path: Path) -> None:
    with (
        Busy(str(tmp_path / "control.sock"), 3, stopped=True).running() as server,
        pytest.raises(TimeoutError, match=r"within 0\.2 s: is it stopped") as raised,
    ):
        ask_patiently(server.path, Configure(geometry={}), 0.2, in_time())
    assert tracebacks(raised.value) == 1


def test_a_server_that_ends_while_busy_is_not_waited_for(tmp_path: Path) -> None:
    with Busy(str(tmp_path / "control.sock"), 10**9, stopped=False).running() as server:
        asker = ThreadPoolExecutor(1)
        answer = asker.submit(ask_patiently, server.path, Configure(geometry={}), 0.2, in_time())
        asker.shutdown(wait=False)
        eventually(lambda: server.others < 10**9 - 2, "it was asked")
    with pytest.raises(ServerNotReady):
        answer.result(5)


def test_other_protocol_version_is_refused(server: Server) -> None:
    with pytest.raises(RadixError, match="protocol 99, the server 2; install the same version"):
        ask(server.path, Hello(protocol=99), 5)


@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack("<I", MAX_MESSAGE_BYTES + 1),
        struct.pack("<I", 3) + b"\xc1\xc1\xc1",
        struct.pack("<I", 1) + b"\x80",
        struct.pack("<I", 0),
        struct.pack("<I", 12) + msgspec.msgpack.encode({"request": "x"})[:12],
    ],
    ids=["too long", "not msgpack", "no tag", "empty", "unknown tag"],
)
def test_malformed_message_closes_that_connection_with_a_reason(
    server: Server, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(server.path, 5) as connection:
        connection.sendall(garbage)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
    assert server.endings.acquire(timeout=5)
    assert "closing a control connection: " in caplog.text
    assert ask_info(server.path, Hello(), 5) == INFO  # others are served on


@pytest.mark.parametrize(
    "begin", [struct.pack("<I", 100) + b"short", b"\x10\0"], ids=["in its body", "in its length"]
)
def test_message_cut_short_is_a_reason_too(
    server: Server, begin: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(server.path, 5) as connection:
        connection.sendall(begin)
    assert server.endings.acquire(timeout=5)
    assert "ended inside a message" in caplog.text


def test_deadline_of_a_reply(server: Server) -> None:
    said = f"the radix-server at {server.path} did not answer within 0.05 s"
    with pytest.raises(TimeoutError, match=said) as raised:
        ask(server.path, WaitReady(timeout_s=60), 0.05)
    assert tracebacks(raised.value) == 1


def test_close_ends_connections_and_removes_the_file(tmp_path: Path) -> None:
    path = str(tmp_path / "control.sock")
    with Server(path).running():
        kept = connect(path, 5)
        exchange(kept, Hello(), 5)
    with kept:
        assert kept.recv(1) == b""
    assert not os.path.exists(path)


def test_no_server_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(ServerNotReady, match=r"no radix-server answers at .*absent") as raised:
        ask(str(tmp_path / "absent.sock"), Hello(), 5)
    assert tracebacks(raised.value) == 1


def test_a_process_without_descriptors_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(RadixError, match=r"cannot ask .*\.sock: Too many open files"):
        ask(str(tmp_path / "any.sock"), Hello(), 5)


def test_unknown_exceptions_travel_as_radix_errors() -> None:
    assert failure_of(KeyError("x")).kind == "RadixError"
    assert failure_of(ServerNotReady("x")).kind == "ServerNotReady"
    assert failure_of(ProtocolError("x")).kind == "RadixError"
    assert failure_of(UnicodeDecodeError("utf8", b"", 0, 1, "x")).kind == "ValueError"


def test_any_reason_of_a_failure_can_be_sent() -> None:
    for reason in (
        "no \ud800 here",
        "\ud800" * MAX_MESSAGE_BYTES,
        "\U0010ffff" * MAX_MESSAGE_BYTES,
    ):
        assert len(frame(failure_of(RadixError(reason)))) <= MAX_MESSAGE_BYTES
    assert failure_of(RadixError("no \ud800 here")).message == "no \\ud800 here"


def test_socket_paths() -> None:
    assert socket_path("", "/x") == "/dev/shm/x.sock"
    assert socket_path("unix:///tmp/y", "/x") == "/tmp/y"
    for endpoint in ("tcp://h:1", "unix://relative", "/tmp/y"):
        with pytest.raises(ValueError, match="endpoint is"):
            socket_path(endpoint, "/x")
    assert socket_path("", "/" + "a" * 93)  # 107 bytes
    with pytest.raises(ValueError, match=r"108 bytes, the system allows 107; choose a shorter"):
        socket_path("", "/" + "a" * 94)


def test_stale_socket_is_removed_only_when_nobody_answers(tmp_path: Path) -> None:
    path = str(tmp_path / "control.sock")
    clear_stale_socket(path)  # nothing there
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    with pytest.raises(RadixError, match="another server already answers"):
        clear_stale_socket(path)
    listener.close()
    clear_stale_socket(path)
    assert not os.path.exists(path)


def test_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    path.write_text("precious")
    with pytest.raises(RadixError, match="is not a socket"):
        clear_stale_socket(str(path))
    assert path.read_text() == "precious"


def test_directories_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ServerConfig("/x", data_bytes="1M", endpoint=f"unix://{tmp_path}/absent/s.sock")
    with pytest.raises(RadixError, match="absent, needed for the control socket, is not a dir"):
        check_directories(config)
    config = ServerConfig("/x", data_bytes="1M", endpoint=f"unix://{tmp_path}/s.sock")
    assert check_directories(config) == f"{tmp_path}/s.sock"
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(RadixError, match="cannot be written by user"):
        check_directories(config)
