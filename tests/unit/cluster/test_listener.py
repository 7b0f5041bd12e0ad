# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The listening port of a server, with members, strangers, and vandals at the other end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import multiprocessing
import os
import random
import socket
import struct
from typing import Any

import pytest
from unit.cluster.streams import TOKEN, echo, listening, raw, run, to_end

from radixshmem_core.cluster.auth import AuthError
from radixshmem_core.cluster.dialer import PeerUnreachable, dial
from radixshmem_core.cluster.listener import Listener
from radixshmem_core.errors import RadixError

REFUSALS = ("malformed", "version", "channel", "token", "timeout", "gone", "crowded")


async def figures_of(listener: Listener, **wanted: int) -> dict[str, int]:
    """The figures, once all connections are settled and `wanted` is true."""
    while True:
        figures = listener.figures()
        settled = sum(figures.get(kind, 0) for kind in ("authenticated", *REFUSALS))
        if settled == figures.get("accepted", 0) and wanted.items() <= figures.items():
            return figures
        await asyncio.sleep(0.005)


async def says(connection: socket.socket, data: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(connection, data)
    return await loop.sock_recv(connection, 4096)


def test_a_dialed_connection_reaches_the_handler_of_its_channel() -> None:
    async def check() -> None:
        seen = []

        async def index(connection: socket.socket) -> None:
            seen.append("index")
            await echo(connection)

        async def control(connection: socket.socket) -> None:
            seen.append("control")
            await echo(connection)

        listener = Listener(TOKEN, {"control": control, "index": index})
        port = await listener.open("127.0.0.1", 0, range(20000, 30000))
        for channel in ("index", "control"):
            with await dial("127.0.0.1", port, channel, TOKEN, 10) as connection:
                assert connection.gettimeout() == 0
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                assert await says(connection, b"hello") == b"hello"
        await listener.close()
        assert seen == ["index", "control"]
        assert listener.figures() == {"accepted": 2, "authenticated": 2}

    run(check())


def test_it_works_over_ipv6() -> None:
    async def check() -> None:
        listener = Listener(TOKEN, {"control": echo})
        port = await listener.open("::1", 0, range(20000, 30000))
        with await dial("::1", port, "control", TOKEN, 10) as connection:
            assert await says(connection, b"hello") == b"hello"
        with pytest.raises(PeerUnreachable):
            await dial("127.0.0.1", port, "control", TOKEN, 10)
        await listener.close()

    run(check())


def test_fifty_at_once_find_ports_of_their_own() -> None:
    async def check() -> None:
        listeners = [Listener(TOKEN, {"control": echo}) for _ in range(50)]
        ports = await asyncio.gather(
            *(listener.open("127.0.0.1", 0, range(20000, 30000)) for listener in listeners)
        )
        assert len(set(ports)) == 50
        for listener in listeners:
            await listener.close()

    run(check())


def test_the_first_free_port_is_taken_and_free_again_after_closing() -> None:
    async def check() -> None:
        async with listening() as (_, port):
            second, third = Listener(TOKEN, {}), Listener(TOKEN, {})
            with pytest.raises(RadixError, match=f"port {port} of 127.0.0.1 is taken.*--rpc-port"):
                await second.open("127.0.0.1", port, range(0))
            with pytest.raises(RadixError, match=f"{port} to {port} .*--port-range|{port} .*taken"):
                await second.open("127.0.0.1", 0, range(port, port + 1))
            assert await third.open("127.0.0.1", 0, range(port, port + 1000)) > port
            await third.close()
            with await dial("127.0.0.1", port, "control", TOKEN, 10) as connection:
                assert await says(connection, b"x") == b"x"
        again = Listener(TOKEN, {})
        assert await again.open("127.0.0.1", port, range(0)) == port  # although one was in use
        await again.close()

    run(check())


@pytest.mark.parametrize("address", ["192.0.2.1", "nonsense", "127.0.0.1/8", ""])
def test_an_address_of_others_is_refused(address: str) -> None:
    with pytest.raises(RadixError, match=r"cannot listen at .*--rpc-address"):
        run(Listener(TOKEN, {}).open(address, 0, range(20000, 30000)))


def test_another_token_is_refused_and_counted() -> None:
    async def check() -> None:
        async with listening() as (listener, port):
            with pytest.raises(AuthError, match=f"peer at 127.0.0.1:{port} refuses .*token-file"):
                await dial("127.0.0.1", port, "control", b"another", 10)
            assert (await figures_of(listener, token=1)) == {"accepted": 1, "token": 1}

    run(check())


def test_a_listener_with_another_token_is_refused() -> None:
    async def pretend(connection: socket.socket) -> None:
        with connection:
            loop = asyncio.get_running_loop()
            await loop.sock_recv(connection, 56)
            await loop.sock_sendall(connection, struct.pack("<4sHH32s", b"RXC1", 1, 0, bytes(32)))
            await loop.sock_recv(connection, 32)
            await loop.sock_sendall(connection, bytes(32))

    async def check() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.setblocking(False)

            async def accept() -> None:
                connection, _ = await asyncio.get_running_loop().sock_accept(server)
                await pretend(connection)

            accepting = asyncio.ensure_future(accept())
            with pytest.raises(AuthError, match="another token"):
                await dial("127.0.0.1", server.getsockname()[1], "control", TOKEN, 10)
            await accepting

    run(check())


def test_dialing_nobody_says_so() -> None:
    async def check() -> None:
        with pytest.raises(PeerUnreachable, match=r"127\.0\.0\.1:1 cannot be reached"):
            await dial("127.0.0.1", 1, "control", TOKEN, 10)
        for address, port in (("nonsense", 1), ("127.0.0.1", 70000)):
            with pytest.raises(PeerUnreachable, match=address):
                await dial(address, port, "control", TOKEN, 10)

    run(check())


def test_dialing_somebody_deaf_ends_at_the_deadline() -> None:
    async def check() -> None:
        deaf = socket.create_server(("127.0.0.1", 0))  # it never accepts
        with deaf, pytest.raises(AuthError, match="within 0"):
            await dial("127.0.0.1", deaf.getsockname()[1], "control", TOKEN, 0.2)

    run(check())


def test_the_oldest_stranger_makes_room() -> None:
    async def check() -> None:
        async with listening(max_unauthenticated=4) as (listener, port):
            strangers = [await raw(port) for _ in range(20)]
            await figures_crowded(listener, 16)
            with await dial("127.0.0.1", port, "control", TOKEN, 10) as connection:
                assert await says(connection, b"x") == b"x"
                for stranger in strangers[:17]:
                    assert await to_end(stranger) == b""
            for stranger in strangers:
                stranger.close()
            figures = await figures_of(listener, authenticated=1)
            assert figures == {"accepted": 21, "authenticated": 1, "crowded": 17, "gone": 3}

    async def figures_crowded(listener: Listener, count: int) -> None:
        while listener.figures().get("crowded", 0) < count:
            await asyncio.sleep(0.005)

    run(check())


def test_a_slow_stranger_is_dropped_at_the_deadline_of_the_handshake() -> None:
    async def check() -> None:
        async with listening(handshake_s=0.1) as (listener, port):
            with await raw(port) as slow:
                await asyncio.get_running_loop().sock_sendall(slow, b"RXH1")
                assert await to_end(slow) == b""
            assert await figures_of(listener, timeout=1) == {"accepted": 1, "timeout": 1}

    run(check())


def vandal_words(dice: random.Random) -> bytes:
    hello = struct.pack("<4sHH16s32s", b"RXH1", 1, 0, b"control", dice.randbytes(32))
    kind = dice.randrange(5)
    if kind == 0:
        return dice.randbytes(dice.randrange(200))
    if kind == 1:
        return hello[: dice.randrange(len(hello))]
    if kind == 2:
        return hello + dice.randbytes(dice.randrange(100))
    if kind == 3:
        return hello + dice.randbytes(200_000)
    changed = bytearray(hello)
    changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    return bytes(changed) + dice.randbytes(32)


def test_random_words_are_refused_and_counted() -> None:
    seed = random.getrandbits(32)
    dice = random.Random(seed)
    print("seed", seed)

    async def vandal(port: int) -> None:
        with await raw(port) as connection:
            with contextlib.suppress(ConnectionError):
                await asyncio.get_running_loop().sock_sendall(connection, vandal_words(dice))
            if dice.random() < 0.3:  # gone with a reset
                linger = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                return
            with contextlib.suppress(OSError):  # the listener may have ended it
                connection.shutdown(socket.SHUT_WR)
            assert len(await to_end(connection)) in (0, 40)

    async def check() -> None:
        async with listening() as (listener, port):
            for _ in range(20):
                await asyncio.gather(*(vandal(port) for _ in range(15)))
            with await dial("127.0.0.1", port, "control", TOKEN, 10) as connection:
                assert await says(connection, b"x") == b"x"
            figures = await figures_of(listener, authenticated=1)
            assert figures["accepted"] == 301

    run(check())


def test_a_failing_handler_does_not_disturb_others(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(connection: socket.socket) -> None:
        connection.close()
        raise RuntimeError("on purpose")

    async def check() -> None:
        async with listening(handler=fail) as (listener, port):
            for _ in range(2):
                with await dial("127.0.0.1", port, "control", TOKEN, 10) as connection:
                    assert await to_end(connection) == b""
            assert await figures_of(listener) == {"accepted": 2, "authenticated": 2}

    run(check())
    assert caplog.text.count("RuntimeError: on purpose") == 2


def test_closing_ends_handlers_and_strangers() -> None:
    async def check() -> None:
        async with listening() as (listener, port):
            member = await dial("127.0.0.1", port, "control", TOKEN, 10)
            stranger = await raw(port)
            with member, stranger:
                while listener.figures()["accepted"] < 2:
                    await asyncio.sleep(0.005)
                await listener.close()
                assert await to_end(member) == b""
                assert await to_end(stranger) == b""

    run(check())


def test_a_handler_may_keep_the_socket_after_it_returned() -> None:
    async def check() -> None:
        kept: list[socket.socket] = []

        async def keep(connection: socket.socket) -> None:
            kept.append(connection)

        async with listening(handler=keep) as (_, port):
            with await dial("127.0.0.1", port, "index", TOKEN, 10) as ours:
                while not kept:
                    await asyncio.sleep(0.005)
                await asyncio.get_running_loop().sock_sendall(kept[0], b"still open")
                assert await asyncio.get_running_loop().sock_recv(ours, 100) == b"still open"
                kept[0].close()

    run(check())


def _wait(running: Any, end: Any) -> None:
    running.set()
    end.wait(30)


def test_a_forked_child_does_not_keep_the_port() -> None:
    context = multiprocessing.get_context("fork")
    running, end = context.Event(), context.Event()
    child = context.Process(target=_wait, args=(running, end))

    async def check() -> None:
        async with listening() as (_, port):
            child.start()
            assert running.wait(20)
        again = Listener(TOKEN, {})
        assert await again.open("127.0.0.1", port, range(0)) == port
        await again.close()

    try:
        run(check())
    finally:
        end.set()
        if child.pid is not None:
            child.join(20)


def test_running_out_of_descriptors_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        monkeypatch.setattr("radixshmem_core.acceptor._PAUSE_S", 0.02)
        async with listening() as (listener, port):
            assert listener._acceptor._socket is not None
            real = listener._acceptor._socket
            fails = 2

            class Failing:
                def accept(self) -> Any:
                    nonlocal fails
                    if fails:
                        fails -= 1
                        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                    return real.accept()

                def __getattr__(self, name: str) -> Any:
                    return getattr(real, name)

            loop = asyncio.get_running_loop()
            loop.remove_reader(real)
            listener._acceptor._socket = Failing()  # type: ignore[assignment]
            listener._acceptor._resume()
            with await dial("127.0.0.1", port, "control", TOKEN, 10) as connection:
                assert await says(connection, b"x") == b"x"
            assert fails == 0

    run(check())
