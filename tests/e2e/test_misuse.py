# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Misuse of a client: each a clear error or a documented no-op, never a crash or a wrong byte."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from e2e.harness import GEOMETRY, Process, path_hashes

from radixshmem_core.client import RadixClient
from radixshmem_core.config import ServerConfig
from radixshmem_core.errors import RadixError
from radixshmem_core.server import RadixServer
from radixshmem_core.values import InsertError


@pytest.fixture
def client(server: RadixServer) -> Iterator[RadixClient]:
    with RadixClient(server.name, GEOMETRY) as attached:
        yield attached


def abandon_a_pin(client: RadixClient) -> None:
    client.query(path_hashes(5), lock=True)
    gc.collect()


def test_abandoned_pin_stays_until_close(server: RadixServer, client: RadixClient) -> None:
    hashes = path_hashes(5)
    client.insert(hashes, client.allocate_slots(5))
    with RadixClient(server.name, GEOMETRY) as other:
        with pytest.warns(ResourceWarning, match="pin"):
            abandon_a_pin(other)
        assert len(client._index.pins()) == 1
        client.reset()
        assert client.mempool_used() == 5  # the bytes are still protected
    assert client._index.pins() == []
    assert client.mempool_used() == 0


def test_finalize_is_idempotent_and_always_there(client: RadixClient) -> None:
    hashes = path_hashes(5)
    client.insert(hashes, client.allocate_slots(5))
    for hit in (
        client.query(hashes, lock=True),
        client.query(hashes),
        client.query(path_hashes(2, seed=5), lock=True),
    ):
        assert hit.finalize
        hit.finalize()
        hit.finalize()
    assert client._index.pins() == []


def test_finalize_after_reset_and_after_close(client: RadixClient) -> None:
    hashes = path_hashes(5)
    client.insert(hashes, client.allocate_slots(5))
    first, second = client.query(hashes, lock=True), client.query(hashes, lock=True)
    job = client.pull_async(hashes)
    client.reset()
    first.finalize()
    client.close()
    second.finalize()
    assert second.validate() is False
    job.cancel()
    assert second.full_slots.size == 5  # the answer itself is still readable


def test_double_recycle_is_an_error_and_recycles_nothing(client: RadixClient) -> None:
    slots = client.allocate_slots(3)
    client.recycle_slots(slots[:1])
    with pytest.raises(ValueError, match=f"slot {slots[0]}"):
        client.recycle_slots(slots)
    assert client.mempool_used() == 2
    with pytest.raises(ValueError, match="slot"):
        client.recycle_slots([int(slots[1]), int(slots[1])])
    assert client.mempool_used() == 2
    client.recycle_slots(slots[1:])
    assert client.mempool_used() == 0


@pytest.mark.parametrize("slot", [-1, 256, 2**31 - 1])
def test_slots_out_of_range_are_refused(client: RadixClient, slot: int) -> None:
    with pytest.raises((ValueError, IndexError), match=str(slot)):
        client.recycle_slots([slot])
    assert client.insert(path_hashes(1), [slot]).error == InsertError.BAD_REQUEST


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64, ">u4"])
def test_unsigned_slots_are_refused_and_stay_the_callers(client: RadixClient, dtype: str) -> None:
    slots = client.allocate_slots(2)
    for call in (lambda wrong: client.insert(path_hashes(2), wrong), client.recycle_slots):
        with pytest.raises(ValueError, match="must be int32"):
            call(slots.astype(dtype))
    assert client.mempool_used() == 2
    client.recycle_slots(slots)


def test_slots_of_somebody_else_are_refused(server: RadixServer, client: RadixClient) -> None:
    with RadixClient(server.name, GEOMETRY) as other:
        theirs, mine = other.allocate_slots(2), client.allocate_slots(2)
        mixed = [int(mine[0]), int(theirs[0])]
        result = client.insert(path_hashes(2), mixed)
        assert (result.error, result.landed[0] == result.landed[1]) == (
            InsertError.BAD_REQUEST,
            True,
        )
        with pytest.raises(ValueError, match=f"slot {theirs[0]}"):
            client.recycle_slots(mixed)
        assert client.query(path_hashes(2)).common_hit == 0
        client.recycle_slots(mine)
        other.recycle_slots(theirs)


def test_inserted_slots_are_no_longer_the_callers(client: RadixClient) -> None:
    slots = client.allocate_slots(2)
    client.insert(path_hashes(2), slots)
    with pytest.raises(ValueError, match=f"slot {slots[0]}"):
        client.recycle_slots(slots)
    assert client.insert(path_hashes(2, seed=3), slots).error == InsertError.BAD_REQUEST
    assert client.query(path_hashes(2)).common_hit == 2


def test_bad_requests_leave_the_slots_with_the_caller(client: RadixClient) -> None:
    slots = client.allocate_slots(3)
    assert client.insert(path_hashes(2), slots).error == InsertError.BAD_REQUEST
    assert client.insert(path_hashes(3), slots, -1).error == InsertError.BAD_REQUEST
    assert client.insert(path_hashes(3), slots, 1).error == InsertError.BAD_REQUEST
    client.recycle_slots(slots)


def test_use_after_close_is_a_clear_error(client: RadixClient) -> None:
    hashes = path_hashes(2)
    slots = client.allocate_slots(2)
    store, view = client.store, client.slot_view(0)
    assert store is not None
    client.close()
    client.close()
    for call in (
        lambda: client.query(hashes),
        lambda: client.insert(hashes, slots),
        lambda: client.allocate_slots(1),
        lambda: client.recycle_slots(slots),
        lambda: client.pull_async(hashes),
        lambda: client.configure(GEOMETRY),
        lambda: client.wait_ready(1),
        client.status,
        client.reset,
        client.flush,
        lambda: client.flush(0),
        client.mempool_used,
        client.kvevent_seek_to_head,
        lambda: store.slot_view(0),
    ):
        with pytest.raises(RadixError, match="closed"):
            call()
    with pytest.raises(ValueError, match="released"):
        view[0]


def test_close_gives_slots_and_pins_back(server: RadixServer, client: RadixClient) -> None:
    hashes = path_hashes(5)
    client.insert(hashes, client.allocate_slots(5))
    other = RadixClient(server.name, GEOMETRY)
    other.allocate_slots(10)
    hit = other.query(hashes, lock=True)
    other.close()
    hit.finalize()
    assert (client.mempool_used(), client._index.pins()) == (5, [])


def test_dropped_client_is_closed(server: RadixServer, client: RadixClient) -> None:
    other = RadixClient(server.name, GEOMETRY)
    other.allocate_slots(10)
    del other
    gc.collect()
    assert client.mempool_used() == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "no_slash"}, 'must start with "/"'),
        ({"name": "/a/b"}, "name is '/a/b'"),
        ({"name": "/" + "x" * 150}, "choose a shorter name"),
        ({"name": "/x", "endpoint": "http://x"}, "endpoint is 'http://x'"),
        ({"name": "/a\0b"}, "name is"),
        ({"name": "/x", "endpoint": "unix:///tmp/a\0b"}, "endpoint is .* without NUL"),
        ({"name": "/x", "group": "a\0b"}, "group is .* without NUL"),
        ({"name": "/x", "group": 5}, "group is 5; it must be a str"),
        ({"name": "/x", "max_outstanding": 0}, "max_outstanding is 0"),
    ],
)
def test_bad_constructor_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RadixClient(**arguments)  # type: ignore[arg-type]


# ---------------------------------------------------------------- fork


def test_forked_child_cannot_use_or_harm_the_client(
    server: RadixServer, start_client: Callable[[str], Process]
) -> None:
    process = start_client(
        """
from radixshmem_core.errors import RadixError
client = RadixClient(name, geometry)
slots = client.allocate_slots(5)
client.insert(hashes(3), slots[:3])
hit = client.query(hashes(3), lock=True)
job = client.pull_async(hashes(3))
child = os.fork()
if child == 0:
    errors = 0
    for call in (
        lambda: client.query(hashes(3)),
        lambda: client.allocate_slots(1),
        lambda: client.recycle_slots(slots[3:]),
        client.status,
        client.flush,
    ):
        try:
            call()
        except RadixError as error:
            errors += "before a fork" in str(error)
    hit.finalize()
    job.cancel()
    client.close()
    own = RadixClient(name, geometry)
    usable = own.query(hashes(3)).common_hit == 3
    own.close()
    del client, hit, job, own
    os._exit(10 * usable + errors)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
say(code, client.query(hashes(3)).common_hit, len(client._index.pins()), client.mempool_used())
client.recycle_slots(slots[3:])
hear()
client.close()
"""
    )
    assert process.line() == "15 3 2 5"
    process.tell("close")
    assert process.wait() == 0


def test_forked_child_that_exits_normally_harms_nobody(
    server: RadixServer, start_client: Callable[[str], Process]
) -> None:
    process = start_client(
        """
import multiprocessing
def child(): pass
client = RadixClient(name, geometry)
client.insert(hashes(3), client.allocate_slots(3))
held = client.allocate_slots(2)
worker = multiprocessing.get_context("fork").Process(target=child)
worker.start()
worker.join()
if os.fork() == 0:
    sys.exit(0)  # runs destructors and exit handlers
os.wait()
say(worker.exitcode, client.query(hashes(3)).common_hit, client.mempool_used())
"""
    )
    assert process.line() == "0 3 5"
    assert process.wait() == 0


def test_forked_child_of_a_server_process_harms_nobody(server: RadixServer) -> None:
    with RadixClient(server.name, GEOMETRY) as client:
        child = os.fork()
        if child == 0:
            server.close()
            client.close()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert client.status().mode == "ready"
        with RadixClient(server.name) as late:
            assert late.query(path_hashes(1)).common_hit == 0


def test_forked_child_does_not_keep_the_socket_of_a_dead_server(
    region_name: str, start_client: Callable[[str], Process]
) -> None:
    process = start_client(
        """
from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer
server = RadixServer(ServerConfig(name, data_bytes="1M")).start()
client = RadixClient(name, geometry)
reads, writes = os.pipe()
child = os.fork()
if child == 0:
    os.write(writes, b"x")
    signal.pause()
os.read(reads, 1)  # it runs, and has let go of what it inherited
say(child)
hear()
"""
    )
    child = int(process.line())
    try:
        process.kill_only()
        with RadixServer(ServerConfig(region_name, data_bytes="1M")) as server:
            assert server.info().mode == "waiting"  # neither the name nor the socket is taken
    finally:
        os.kill(child, signal.SIGKILL)
