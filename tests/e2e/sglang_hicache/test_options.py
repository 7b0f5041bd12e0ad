# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Options of SGLang's extra config that are misspelled or of the wrong kind are told."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from e2e.harness import eventually
from sglang.srt.mem_cache import utils
from sglang.srt.mem_cache.cpp_utils.native_hash import _load_native_hash_module as load_hash
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang_rig import storage_config

from radixshmem import (
    Geometry,
    GeometryMismatch,
    RadixError,
    RadixServer,
    ServerConfig,
    ServerNotReady,
)
from radixshmem.integrations.sglang_hicache import RadixShmemStorage, connection, plugin
from radixshmem.integrations.sglang_hicache.connection import Connection
from radixshmem.integrations.sglang_hicache.options import Settings
from radixshmem_core import link

CONFIGS = Path(__file__).parents[3] / "configs"  # what users copy
NATIVE = CONFIGS / "sglang_hicache.json"
DYNAMIC = CONFIGS / "sglang_hicache_dynamic.json"


def storage(extra: dict[str, Any] | None) -> RadixShmemStorage:
    """As SGLang makes it: of one rank, with what its parser left in the extra config."""
    return RadixShmemStorage(dataclasses.replace(storage_config(), extra_config=extra))


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ({"server_nam": "/b"}, r"unknown option 'server_nam'; did you mean server_name\?"),
        ({"pull_timeout": 5}, "unknown option 'pull_timeout'; did you mean pull_timeout_ms"),
        ({"prefetch_treshold": 5}, r"'prefetch_treshold'; did you mean prefetch_threshold"),
        ({"tp_rank": 1}, r"unknown option 'tp_rank' .*knows server_name, endpoint, revision, pull"),
        ({"server_name": None}, "lacks 'server_name': the --name of the radix-server"),
        ({"server_name": ""}, "lacks 'server_name'"),
        ({"server_name": "kv_cache"}, "server_name is 'kv_cache'; it must start with \"/\""),
        ({"server_name": 7}, "server_name is 7"),
        ({"endpoint": 7}, "endpoint is 7; it must be a text"),
        ({"revision": 2}, "revision is 2; it must be a text"),
        ({"pull_timeout_ms": "1000"}, r"pull_timeout_ms is '1000'; .*milliseconds, unquoted"),
        ({"pull_timeout_ms": -1}, "pull_timeout_ms is -1"),
        ({"pull_timeout_ms": True}, "pull_timeout_ms is True"),
        ({"pull_timeout_ms": 0.5}, "pull_timeout_ms is 0.5; it must be a whole number"),
        ({"backend_name": "radixshmem"}, 'lacks "interface_v1": 1'),
        ({"backend_name": "radixshmem", "interface_v1": 0}, 'lacks "interface_v1": 1'),
    ],
)
def test_an_option_that_does_not_work_is_told(option: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=f"--hicache-storage-backend-extra-config.*{told}"):
        storage({"server_name": "/radixshmem_nobody"} | option)


@pytest.mark.parametrize("nothing", [None, {}])
def test_without_a_config_the_option_that_is_needed_is_told(nothing: dict[str, Any] | None) -> None:
    with pytest.raises(ValueError, match=r"lacks 'server_name'.*such as"):
        storage(nothing)


def test_the_hash_of_keys_is_compiled_before_the_first_request() -> None:
    load_hash.cache_clear()
    storage({"server_name": "/radixshmem_nobody"}).close()
    assert load_hash.cache_info().currsize == 1


def test_without_a_compiler_it_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))  # where nothing is compiled yet
    monkeypatch.setenv("CXX", "false")
    load_hash.cache_clear()
    with pytest.raises(
        RuntimeError, match=r"hash of its page keys \(.*false.*: install g\+\+, ninja"
    ):
        storage({"server_name": "/radixshmem_nobody"})


def test_without_a_place_for_the_hash_it_is_told_what_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "file" / "folder"))
    load_hash.cache_clear()
    with pytest.raises(
        RuntimeError, match=r"hash of its page keys \(.*file.*: have TORCH_EXTENSIONS_DIR name"
    ):
        storage({"server_name": "/radixshmem_nobody"})


def test_what_was_given_is_taken_and_the_rest_has_defaults() -> None:
    given = {"server_name": "/a", "revision": "main", "endpoint": None, "pull_timeout_ms": 0}
    sglangs = {"prefetch_threshold": 16, "file_storage_path": "/tmp", "interface_v1": 1}
    assert Settings.of(given | sglangs) == Settings("/a", revision="main", pull_timeout_ms=0)


def test_an_sglang_whose_keys_are_of_tokens_alone_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As before 0.5.20: requests of other tenants would get the pages."""
    storage({"server_name": "/radixshmem_nobody"}).close()
    monkeypatch.delattr(utils, "get_storage_hash_str")
    with pytest.raises(ValueError, match=r"cache_salt, extra_key and LoRA.*0\.5\.20 or later"):
        storage({"server_name": "/radixshmem_nobody"})


@pytest.mark.parametrize("file", [NATIVE, DYNAMIC], ids=lambda path: path.stem)
def test_sglang_takes_the_files_that_users_copy(file: Path) -> None:
    extra, *_, prefix_keys = HybridCacheController.parse_storage_backend_extra_config(f"@{file}")
    assert Settings.of(extra) == Settings("/kv_cache")
    assert prefix_keys is (file == DYNAMIC)  # the plugin sets it for the native name
    storage(extra).close()


def test_the_warning_of_the_plugin_has_the_dynamic_config_that_users_copy() -> None:
    assert json.loads(plugin.DYNAMIC_CONFIG) == json.loads(DYNAMIC.read_text(encoding="utf-8"))


def test_a_server_without_slots_is_refused(region_name: str) -> None:
    with (
        RadixServer(ServerConfig(region_name, index_slots=64)),
        pytest.raises(RadixError, match=f"{region_name} is an index-only server.*--data-bytes"),
    ):
        Connection(Settings(region_name), Geometry(16, 4000))


def test_a_late_server_of_other_pages_is_told_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers = itertools.chain([ServerNotReady("none")], itertools.repeat(GeometryMismatch("both")))

    def attach(*_: object, **__: object) -> None:
        raise next(answers)

    monkeypatch.setattr(connection, "RadixClient", attach)
    monkeypatch.setattr(connection, "_RETRY_S", 0.01)
    late = Connection(Settings("/radixshmem_nobody"), Geometry(16, 4000), "; one for each stage")
    eventually(lambda: "both; one for each stage" in caplog.text, "it is told")
    assert late.client is None
    late.close()


def test_a_server_is_tried_again_often_enough_to_be_found_within_5_seconds() -> None:
    """By an engine that never had one, and by one whose server went away."""
    assert connection._RETRY_S <= 2
    assert link._LAST_RETRY_S <= 2
