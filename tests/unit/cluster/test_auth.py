# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The cluster token and the handshake, both ends against each other and against forgers."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from pathlib import Path

import pytest
from unit.cluster.streams import TOKEN, pair, run

from radixshmem_core.cluster.auth import (
    HANDSHAKE_VERSION,
    AuthError,
    greet_dialer,
    greet_listener,
    load_token,
)

CHANNELS = ("control", "index")
HELLO_BYTES, CHALLENGE_BYTES, PROOF_BYTES = 56, 40, 32


async def both(
    dialer_token: bytes = TOKEN, listener_token: bytes = TOKEN, channel: str = "index"
) -> list[object]:
    """What the dialer and the listener end with."""
    ours, theirs = pair()

    async def dialer() -> None:
        with ours:
            await greet_listener(ours, dialer_token, channel)

    async def listener() -> str:
        with theirs:
            return await greet_dialer(theirs, listener_token, CHANNELS)

    return list(await asyncio.gather(dialer(), listener(), return_exceptions=True))


def kinds(outcome: list[object]) -> list[str]:
    return [error.kind if isinstance(error, AuthError) else "ok" for error in outcome]


@pytest.mark.parametrize("channel", CHANNELS)
def test_both_sides_prove_the_token(channel: str) -> None:
    assert run(both(channel=channel)) == [None, channel]


def test_an_empty_token_agrees_with_an_empty_token_only() -> None:
    assert run(both(b"", b"")) == [None, "index"]
    assert kinds(run(both(b"", TOKEN))) == ["token", "token"]


def test_another_token_is_refused_on_both_sides() -> None:
    outcome = run(both(dialer_token=TOKEN + b"!"))
    assert kinds(outcome) == ["token", "token"]
    assert "--cluster-token-file" in str(outcome[0])
    assert "--cluster-token-file" in str(outcome[1])


def test_an_unknown_channel_is_refused_after_the_proof() -> None:
    assert kinds(run(both(channel="other"))) == ["token", "channel"]
    assert kinds(run(both(channel="other", dialer_token=b"x"))) == ["token", "token"]


def test_what_follows_the_handshake_is_left_for_the_channel() -> None:
    async def check() -> None:
        ours, theirs = pair()
        loop = asyncio.get_running_loop()
        with ours, theirs:
            greeting = asyncio.ensure_future(greet_dialer(theirs, TOKEN, CHANNELS))
            await greet_listener(ours, TOKEN, "control")
            await loop.sock_sendall(ours, b"first")
            assert await greeting == "control"
            assert await loop.sock_recv(theirs, 100) == b"first"

    run(check())


class Recorder:
    """A man in the middle: passes everything on and keeps it; may change one bit."""

    def __init__(self, flip_from_dialer: int = -1, flip_from_listener: int = -1) -> None:
        self.from_dialer, self.from_listener = bytearray(), bytearray()
        self._flips = flip_from_dialer, flip_from_listener

    async def run(self) -> list[object]:
        dialer, middle_dialer = pair()
        middle_listener, listener = pair()

        async def dial() -> None:
            with dialer:
                await greet_listener(dialer, TOKEN, "index", 5)

        async def listen() -> str:
            with listener:
                return await greet_dialer(listener, TOKEN, CHANNELS, 5)

        passing = [
            self._pass(middle_dialer, middle_listener, self.from_dialer, self._flips[0]),
            self._pass(middle_listener, middle_dialer, self.from_listener, self._flips[1]),
        ]
        outcome = await asyncio.gather(dial(), listen(), *passing, return_exceptions=True)
        middle_dialer.close()
        middle_listener.close()
        return list(outcome[:2])

    async def _pass(
        self, source: socket.socket, target: socket.socket, kept: bytearray, flip: int
    ) -> None:
        loop = asyncio.get_running_loop()
        while data := bytearray(await loop.sock_recv(source, 1)):
            if flip // 8 == len(kept):
                data[0] ^= 1 << flip % 8
            kept += data
            await loop.sock_sendall(target, data)
        target.shutdown(socket.SHUT_WR)


def test_nothing_but_a_challenge_goes_to_who_has_not_proven() -> None:
    async def check() -> None:
        ours, theirs = pair()
        loop = asyncio.get_running_loop()
        seen = Recorder()
        await seen.run()
        with ours, theirs:
            greeting = asyncio.ensure_future(greet_dialer(theirs, TOKEN, CHANNELS))
            await loop.sock_sendall(ours, bytes(seen.from_dialer))  # a replay
            with pytest.raises(AuthError, match="another token"):
                await greeting
            theirs.shutdown(socket.SHUT_WR)
            received = b""
            while part := await loop.sock_recv(ours, 1000):
                received += part
        assert len(received) == CHALLENGE_BYTES

    run(check())


@pytest.mark.parametrize("byte", range(HELLO_BYTES + PROOF_BYTES))
def test_no_bit_of_the_dialer_may_change(byte: int) -> None:
    outcome = run(Recorder(flip_from_dialer=8 * byte + byte % 8).run())
    assert "ok" not in kinds(outcome)


@pytest.mark.parametrize("byte", range(CHALLENGE_BYTES + PROOF_BYTES))
def test_no_bit_of_the_listener_may_change(byte: int) -> None:
    outcome = run(Recorder(flip_from_listener=8 * byte + byte % 8).run())
    assert kinds(outcome)[0] != "ok"


def test_another_version_is_told_to_both_sides() -> None:
    at = 8 * 4  # the version of the hello
    outcome = run(Recorder(flip_from_dialer=at).run())
    assert kinds(outcome)[1] == "version"
    assert f"version {HANDSHAKE_VERSION ^ 1}, this node {HANDSHAKE_VERSION}" in str(outcome[1])
    assert kinds(run(Recorder(flip_from_listener=at).run()))[0] == "version"


def test_proofs_cannot_be_sent_back_to_their_maker() -> None:
    """A listener without the token that shows the dialer its own words."""

    async def check() -> None:
        ours, theirs = pair()
        loop = asyncio.get_running_loop()
        with ours, theirs:
            greeting = asyncio.ensure_future(greet_listener(ours, TOKEN, "index"))
            hello = await loop.sock_recv(theirs, 1000)
            await loop.sock_sendall(theirs, b"RXC1" + hello[4:8] + hello[24:])
            await loop.sock_sendall(theirs, await loop.sock_recv(theirs, 1000))
            with pytest.raises(AuthError, match="another token"):
                await greeting

    run(check())


def test_a_proof_is_for_one_channel() -> None:
    at = 8 * (8 + 4)  # "index" -> another name that is known
    outcome = run(Recorder(flip_from_dialer=at).run())
    assert kinds(outcome)[1] == "token"


@pytest.mark.parametrize("sent", [b"", b"R", bytes(HELLO_BYTES - 1)])
def test_a_silent_or_slow_end_is_given_up(sent: bytes) -> None:
    async def check() -> None:
        ours, theirs = pair()
        with ours, theirs:
            await asyncio.get_running_loop().sock_sendall(ours, sent)
            with pytest.raises(AuthError, match=r"within 0\.1 s") as caught:
                await greet_dialer(theirs, TOKEN, CHANNELS, 0.1)
            assert caught.value.kind == "timeout"
            with pytest.raises(AuthError, match=r"within 0\.1 s"):
                await greet_listener(theirs, TOKEN, "index", 0.1)

    run(check())


@pytest.mark.parametrize(
    ("sent", "kind"), [(b"", "gone"), (b"RXH1", "malformed"), (bytes(200), "malformed")]
)
def test_an_end_that_goes_away_or_talks_nonsense(sent: bytes, kind: str) -> None:
    async def check() -> None:
        for listener in (True, False):
            ours, theirs = pair()
            with ours, theirs:
                await asyncio.get_running_loop().sock_sendall(ours, sent)
                ours.shutdown(socket.SHUT_WR)
                steps = (
                    greet_dialer(theirs, TOKEN, CHANNELS)
                    if listener
                    else greet_listener(theirs, TOKEN, "index")
                )
                with pytest.raises(AuthError) as caught:
                    await steps
                assert caught.value.kind == kind

    run(check())


def token_file(path: Path, content: bytes, mode: int = 0o600) -> str:
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


def test_a_token_is_read_without_its_line_end(tmp_path: Path) -> None:
    path = token_file(tmp_path / "token", b"0123456789abcdef\n")
    assert load_token(path, loopback_only=False) == b"0123456789abcdef"
    os.chmod(path, 0o640)
    assert load_token(path, loopback_only=True) == b"0123456789abcdef"


def test_the_command_in_the_message_makes_a_token(tmp_path: Path) -> None:
    path = str(tmp_path / "token")
    with pytest.raises(ValueError, match=r"cannot be read .*No such file") as caught:
        load_token(path, loopback_only=False)
    assert os.system(str(caught.value).split("`")[1]) == 0
    assert len(load_token(path, loopback_only=False)) >= 32


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o602, 0o601])
def test_a_token_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = token_file(tmp_path / "token", TOKEN, mode)
    with pytest.raises(ValueError, match=f"mode {mode:04o}.*chmod 600 {path}"):
        load_token(path, loopback_only=False)


@pytest.mark.parametrize("content", [b"", b"0123456789abcde\n", b" " * 100, b"x" * 4097])
def test_a_token_of_the_wrong_size_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ValueError, match=r"16 to 4096; make it with `\(umask"):
        load_token(token_file(tmp_path / "token", content), loopback_only=True)


def test_only_loopback_may_go_without(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert load_token("", loopback_only=True) == b""
    assert caplog.text.count("--cluster-token-file") == 1
    with pytest.raises(ValueError, match="--cluster-token-file FILE"):
        load_token("", loopback_only=False)
