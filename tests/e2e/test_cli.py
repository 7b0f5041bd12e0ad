# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The radix-server command: its verbs on living and dead servers, text and JSON."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import re
import signal
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.harness import GEOMETRY, Process, ServerProcess, path_hashes

from radixshmem_core.cli import main
from radixshmem_core.client import RadixClient
from radixshmem_core.config import ServerConfig
from radixshmem_core.errors import RadixError
from radixshmem_core.server import RadixServer
from radixshmem_core.values import Geometry

_AREAS_AT = 112  # of the region header: areas of {kind u32, version u32, offset u64, bytes u64}
_OWNERS_OF_FULL = 12


@dataclasses.dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


def command(*arguments: str) -> Done:
    """Runs a verb in this process, as on a terminal of 80 columns."""
    out, errors = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
    ):
        patch.setenv("COLUMNS", "80")
        patch.setenv("TERM", "dumb")
        try:
            code = main(arguments)
        except SystemExit as exit_of_argparse:
            code = int(exit_of_argparse.code or 0)
    return Done(code, out.getvalue(), errors.getvalue())


def answer(*arguments: str) -> Any:
    done = command(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def client(server: RadixServer) -> Iterator[RadixClient]:
    with RadixClient(server.name, GEOMETRY) as attached:
        attached.insert(path_hashes(70), attached.allocate_slots(70))
        attached.query(path_hashes(80))
        yield attached


def test_status_of_a_waiting_server(server: RadixServer) -> None:
    report = answer("status", server.name)
    assert (report["info"]["mode"], report["memory"], report["clients"]) == ("waiting", [], [])
    text = command("status", "--name", server.name)
    assert "waiting for the first client" in text.stdout
    check = command("check", server.name)
    assert (check.returncode, "waits for a client's geometry" in check.stderr) == (2, True)


def test_status_shows_one_memory_table(client: RadixClient) -> None:
    report = answer("status", client.name)
    assert report["info"]["mode"] == "ready"
    assert report["counters"]["blocks"] == 70
    assert (report["counters"]["hit_blocks"], report["counters"]["missed_blocks"]) == (70, 10)
    rows = {row["what"]: row for row in report["memory"]}
    assert rows["FULL slots"]["used_bytes"] == 70 * 4096
    assert rows["FULL slots"]["reserved_bytes"] == 256 * 4096
    parts = [row for what, row in rows.items() if what.startswith("index ")]
    whole = rows["index in all"]
    assert sum(row["reserved_bytes"] for row in parts) == 2 * whole["reserved_bytes"]
    assert 0 < report["index_bytes_per_block"] == whole["used_bytes"] / 70
    text = command("status", client.name).stdout
    assert re.search(r"index per block +- +told from 1,000 blocks on", text)
    assert "0.875 of the blocks asked for" in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_status_tells_the_index_per_block_once_the_cache_fills(region_name: str) -> None:
    config = ServerConfig(region_name, data_bytes="5M")
    with RadixServer(config), RadixClient(region_name, GEOMETRY) as client:
        client.insert(path_hashes(999), client.allocate_slots(999))
        assert re.search(r"index per block +- ", command("status", region_name).stdout)
        client.insert(path_hashes(1, seed=1), client.allocate_slots(1))
        text = command("status", region_name).stdout
        assert re.search(r"index per block +\d+\.\d B +segments, table, owner words", text)


def test_status_shows_a_fingerprint_as_it_is(region_name: str) -> None:
    fingerprint = '{"a":[null,null],"b":"[bold]"}'
    with (
        RadixServer(ServerConfig(region_name, data_bytes="1M")),
        RadixClient(region_name, Geometry(16, 4096, fingerprint=fingerprint)),
    ):
        assert fingerprint in command("status", region_name).stdout


def test_top_counts_what_happens(client: RadixClient) -> None:
    done = command("top", client.name, "--count", "2", "--interval", "0.05")
    assert done.returncode == 0
    assert done.stdout.count("per second") == 2  # each one, when it is no terminal
    assert done.stdout.endswith("\n")
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    report = answer("top", client.name, "--count", "1", "--interval", "0.01")
    assert report["now"]["counters"]["queries"] >= report["before"]["queries"]


def test_dump_lists_segments(client: RadixClient) -> None:
    report = answer("dump", client.name)
    assert report["total"] == len(report["segments"]) == client.total_radix_nodes()
    assert sum(segment["count"] for segment in report["segments"]) == 70
    assert path_hashes(70)[0] in {segment["first_hash"] for segment in report["segments"]}
    text = command("dump", client.name, "--limit", "1").stdout
    assert "segments (1 of" in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_pins_lists_pins_and_clients(client: RadixClient) -> None:
    hit = client.query(path_hashes(70), lock=True)
    report = answer("pins", client.name)
    assert [pin["client"] for pin in report["pins"]] == [client._index.client_id]
    assert {entry["client"]: entry["pins"] for entry in report["clients"]}[0] == 0
    text = command("pins", client.name).stdout
    assert "clients" in text
    assert max(len(line) for line in text.splitlines()) <= 80
    hit.finalize()
    assert answer("pins", client.name)["pins"] == []


def test_check_of_a_sound_index(client: RadixClient) -> None:
    assert answer("check", client.name) == {"name": client.name, "ok": True, "violations": []}
    done = command("check", client.name, "--repair")
    assert (done.returncode, "every invariant holds" in done.stdout) == (0, True)


def test_check_names_the_violated_invariant(client: RadixClient) -> None:
    with open(f"/dev/shm{client.name}", "r+b") as region:
        region.seek(_AREAS_AT)
        areas = {
            kind: offset for kind, _, offset, _ in struct.iter_unpack("<IIQQ", region.read(24 * 32))
        }
        region.seek(areas[_OWNERS_OF_FULL])
        owners = struct.unpack("<256I", region.read(4 * 256))
        taken = owners.index(0xFFFFFFFF)  # a slot of the tree
        region.seek(areas[_OWNERS_OF_FULL] + 4 * taken)
        region.write(struct.pack("<I", 0xFFFFFFFE))  # now said to be in quarantine
        region.flush()
        done = command("check", client.name)
        assert done.returncode == 1
        assert "I1" in done.stdout
        assert "docs/recovery.md says under Invariants" in done.stdout
        report = command("check", client.name, "--json")
        assert (report.returncode, json.loads(report.stdout)["ok"]) == (1, False)
        assert command("check", client.name, "--repair").returncode == 0


def test_dead_server_can_be_looked_at(
    region_name: str, start_server: Callable[..., ServerProcess]
) -> None:
    server = start_server()
    server.event("waiting")
    with RadixClient(region_name, GEOMETRY) as client:
        client.insert(path_hashes(5), client.allocate_slots(5))
        server.kill()
    assert answer("check", region_name)["ok"]
    assert answer("dump", region_name)["segments"][0]["count"] == 5
    assert answer("pins", region_name)["pins"] == []
    status = command("status", region_name)
    assert (status.returncode, "no radix-server answers" in status.stderr) == (2, True)
    with_next = start_server()
    with_next.event("waiting")  # the looks of the dead one did not keep its index
    assert with_next.stop() == 0


def test_every_verb_works_beside_a_full_client_table(region_name: str) -> None:
    with (
        RadixServer(ServerConfig(region_name, data_bytes="1M", max_clients=2)),
        RadixClient(region_name, GEOMETRY) as client,
        RadixClient(region_name),
    ):
        client.insert(path_hashes(5), client.allocate_slots(5))
        with pytest.raises(RadixError, match="all 2 client entries"):
            RadixClient(region_name)
        for _ in range(2):  # a look leaves the table as it was
            assert answer("check", region_name)["ok"]
            assert answer("dump", region_name)["segments"][0]["count"] == 5
        assert len(answer("pins", region_name)["clients"]) == 3
        assert len(answer("status", region_name)["clients"]) == 3
        assert command("top", region_name, "--count", "1", "--interval", "0.01").returncode == 0


@pytest.mark.parametrize("verb", ["status", "check", "top", "dump", "pins"])
def test_verbs_on_nothing_are_errors(verb: str, region_name: str) -> None:
    done = command(verb, region_name)
    assert done.returncode == 2
    assert done.stderr.startswith("radix-server: ")
    assert "Traceback" not in done.stderr
    assert command(verb).returncode == 2
    assert "must start with" in command(verb, "x").stderr


def test_server_says_on_the_terminal_what_it_does(
    region_name: str, processes: Callable[..., Any]
) -> None:
    flags = ("--name", region_name, "--data-bytes", "1M")
    server = processes(Process, "-m", "radixshmem_core.cli", *flags)  # start is the default verb
    assert "waits for a client's geometry (1.0 MiB for slots)" in server.line()
    with RadixClient(region_name, GEOMETRY):
        lines = [server.line(), server.line()]
        assert "reserves its memory" in lines[0]
        assert "is ready: 256 full slots of 4,000 bytes" in lines[1]
        assert "touched 1.0 MiB of 1.0 MiB" in server.line()
    server.signal(15)
    assert "stops" in server.line()
    assert server.wait() == 0
    assert "waiting" not in server.errors  # each event is told once


def test_nohup_keeps_the_server(region_name: str, processes: Callable[..., Any]) -> None:
    program = (
        "import signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN);"
        "from radixshmem_core.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    server = processes(Process, "-c", program, "--name", region_name, "--data-bytes", "1M")
    assert "waits for" in server.line()
    state = Path(f"/proc/{server.pid}/status").read_text(encoding="utf-8")
    ignored = int(state.split("SigIgn:")[1].split()[0], 16)
    assert ignored & 1 << signal.SIGHUP - 1
    server.signal(signal.SIGTERM)
    assert server.wait() == 0


def test_another_users_cache_names_the_fix(client: RadixClient) -> None:
    os.chmod(f"/dev/shm{client.name}.live", 0)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setuid(65534)  # root may open everything
            os.write(write, command("check", client.name).stderr.encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, encoding="utf-8") as told:
        assert "run as that user, start its radix-server with --group" in told.read()
    os.waitpid(child, 0)


def test_help_lists_the_verbs() -> None:
    text = command("--help").stdout
    for verb in ("start", "status", "check", "top", "dump", "nodes", "drain", "pins"):
        assert f"\n    {verb} " in text
    text = command("start", "--help").stdout
    assert "--background-evict-ratio" in text
    assert max(len(line) for line in text.splitlines()) <= 80
    titles = ("server", "cluster, with --registry", "data plane of a cluster")
    places = [text.index(f"\n{title}:\n") for title in titles]
    assert places == sorted(places)
    for field in dataclasses.fields(ServerConfig):
        assert f"  --{field.name.replace('_', '-')}" in text, field.name
    assert command("--version").stdout.startswith("radixshmem ")


def test_every_figure_is_documented(client: RadixClient) -> None:
    api = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    report = answer("status", client.name)
    names = [*report, *report["counters"], *report["memory"][0], *report["clients"][0]]
    assert [name for name in names if f"`{name}`" not in api] == []
