# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""How the backend gets into the installed SGLang: the entry point, the flag, the factory."""

from __future__ import annotations

import argparse
import collections
import inspect
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace

import pytest
from sglang.srt.mem_cache.storage import StorageBackendFactory
from sglang.srt.mem_cache.unified_cache.storage_attachment import StorageAttachment
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.plugins import load_plugins
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.server_args import ServerArgs
from sglang.srt.utils.server_args_config_parser import ConfigArgumentMerger
from sglang_rig import storage_config

from radixshmem.integrations.sglang_hicache import RadixShmemStorage, plugin

_STAND_INS = str(Path(__file__).parents[3] / "benchmarks/sglang_cpu")
_FRESH = """
import argparse, json, logging, sglang.srt.plugins as plugins
plugins.load_plugins()
plugins._plugins_loaded = False  # as if another part of SGLang called it first
plugins.load_plugins()
from sglang.srt.mem_cache.storage import StorageBackendFactory
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.server_args import ServerArgs
from sglang.srt.utils.server_args_config_parser import ConfigArgumentMerger
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
(option,) = [a for a in parser._actions if a.dest == "hicache_storage_backend"]
print(json.dumps({
    "choices": list(option.choices),
    "hooks": {target: len(hooks) for target, hooks in HookRegistry._hooks.items()},
    "patched": sorted(HookRegistry._patched),
    "backend": StorageBackendFactory._registry["radixshmem"]["class_name"],
}))
"""


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    load_plugins()


def test_a_fresh_process_has_each_hook_once_however_often_plugins_are_loaded() -> None:
    path = os.pathsep.join(filter(None, [_STAND_INS, os.environ.get("PYTHONPATH")]))
    fresh = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _FRESH],
        env=os.environ | {"PYTHONPATH": path, "SGLANG_PLUGINS": "radixshmem"},
        capture_output=True,
        text=True,
    )
    assert fresh.returncode == 0, fresh.stderr
    found = json.loads(fresh.stdout.splitlines()[-1])
    targets = sorted(hook.target for hook in plugin.hooks())
    assert found["patched"] == targets
    assert found["hooks"] == dict.fromkeys(targets, 1)
    assert found["choices"].count("radixshmem") == 1
    assert found["backend"] == "RadixShmemStorage"


def test_the_entry_point_is_that_of_the_plugin() -> None:
    (ours,) = (
        each for each in entry_points(group="sglang.srt.plugins") if each.name == plugin.NAME
    )
    assert ours.load() is plugin.register


def test_the_flag_takes_the_name_and_refuses_others() -> None:
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    for name in ("radixshmem", "file", "dynamic"):
        given = parser.parse_args(["--model-path", "m", "--hicache-storage-backend", name])
        assert given.hicache_storage_backend == name
    with pytest.raises(SystemExit):
        parser.parse_args(["--model-path", "m", "--hicache-storage-backend", "radixshmen"])


def test_a_config_file_takes_the_name(tmp_path: Path) -> None:
    file = tmp_path / "sglang.yaml"
    file.write_text("model-path: none\nhicache-storage-backend: radixshmem\n")
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    arguments = ConfigArgumentMerger(parser).merge_config_with_args(["--config", str(file)])
    assert parser.parse_args(arguments).hicache_storage_backend == "radixshmem"


def test_the_factory_makes_our_class_by_its_name_and_by_its_path() -> None:
    by_name = StorageBackendFactory.create_backend(
        "radixshmem", storage_config(server_name="/kv"), None
    )
    assert isinstance(by_name, RadixShmemStorage)
    extra = json.loads(plugin.DYNAMIC_CONFIG)
    extra.pop("hicache_storage_pass_prefix_keys")  # SGLang takes this one out
    by_path = StorageBackendFactory.create_backend("dynamic", storage_config(**extra), None)
    assert isinstance(by_path, RadixShmemStorage)


def test_sglang_can_wrap_it_to_inject_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE", "1")
    wrapped = StorageBackendFactory.create_backend(
        "radixshmem", storage_config(server_name="/kv"), None
    )
    assert isinstance(wrapped._backend, RadixShmemStorage)
    assert wrapped.batch_exists(["0" * 64]) == 0


def test_other_backends_are_made_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        StorageBackendFactory._registry,
        "file",
        {"loader": lambda: SimpleNamespace, "module_path": "", "class_name": ""},
    )
    with pytest.raises(TypeError):  # SimpleNamespace takes no argument: SGLang's own code was run
        StorageBackendFactory.create_backend("file", storage_config(), None)
    with pytest.raises(ValueError, match="Unknown storage backend"):
        StorageBackendFactory.create_backend("fil", storage_config(), None)


@pytest.mark.parametrize(
    ("backend", "asked", "published"),
    [("radixshmem", False, True), ("file", False, False), ("file", True, True)],
)
def test_only_ours_is_told_the_keys_of_the_prefix(
    backend: str, asked: bool, published: bool
) -> None:
    cache = SimpleNamespace(enable_storage=True, page_size=16)
    StorageAttachment(cache).apply_runtime_config(
        storage_backend=backend,
        prefetch_threshold=1,
        prefetch_timeout_base=1,
        prefetch_timeout_per_ki_token=1,
        hicache_storage_pass_prefix_keys=asked,
        enable_storage=True,
        enable_storage_metrics=False,
        extra_metric_labels=None,
    )
    assert cache.hicache_storage_pass_prefix_keys is published


@pytest.mark.parametrize(
    ("backend", "extra", "keys"),
    [
        ("radixshmem", {}, ["a", "b", "c", "d"]),
        ("dynamic", {"backend_name": "radixshmem"}, ["a", "b", "c", "d"]),
        ("dynamic", {"backend_name": "other"}, ["a", "b"]),
        ("file", {}, ["a", "b"]),
        (None, {}, ["a", "b"]),
    ],
)
def test_only_ours_gets_the_keys_of_the_last_node_too(
    backend: str | None, extra: dict[str, str], keys: list[str]
) -> None:
    tree = SimpleNamespace(
        get_prefix_hash_values=lambda node: ["a", "b"], get_hash_values=lambda node: ["c", "d"]
    )
    controller = SimpleNamespace(
        storage_backend_type=backend, storage_config=SimpleNamespace(extra_config=extra)
    )
    cache = SimpleNamespace(tree_core=tree, cache_controller=controller)
    assert UnifiedRadixCache.get_prefix_hash_values(cache, 7) == keys


@pytest.mark.parametrize(
    ("before", "own", "keys"),
    [
        ([], [], []),
        ([], ["a"], ["a"]),
        (["a"], [], ["a"]),
        (["a", "b"], ["b"], ["a", "b"]),
        (["b"], ["a", "b"], ["b", "a", "b"]),
    ],
)
def test_keys_that_sglang_tells_already_are_not_told_twice(
    before: list[str], own: list[str], keys: list[str]
) -> None:
    tree = SimpleNamespace(
        get_prefix_hash_values=lambda node: list(before), get_hash_values=lambda node: own
    )
    controller = SimpleNamespace(storage_backend_type="radixshmem")
    cache = SimpleNamespace(tree_core=tree, cache_controller=controller)
    assert UnifiedRadixCache.get_prefix_hash_values(cache, 7) == keys


class TestMissingTarget:
    """SGLang has changed: one warning that says what to do instead, and nothing is hooked."""

    @pytest.fixture(autouse=True)
    def untouched(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setattr(plugin, "_registered", False)
        monkeypatch.setattr(HookRegistry, "_hooks", collections.defaultdict(list))
        monkeypatch.setattr(StorageBackendFactory, "_registry", {})
        yield
        assert not HookRegistry._hooks
        assert not StorageBackendFactory._registry

    @pytest.mark.parametrize("hook", plugin.hooks(), ids=lambda hook: hook.function.__name__)
    @pytest.mark.parametrize("how", ["gone", "other parameters"])
    def test_one_warning_names_it_and_the_way_without(
        self,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        hook: plugin.Hook,
        how: str,
    ) -> None:
        where, _, name = hook.target.rpartition(".")
        owner = pkgutil.resolve_name(where)
        if how == "gone":
            for cls in owner.__mro__:  # else it is inherited, which is as good
                if name in vars(cls):
                    monkeypatch.delattr(cls, name)
        else:
            monkeypatch.setattr(owner, name, lambda unexpected: None)
        plugin.register()
        plugin.register()
        (told,) = caplog.records
        words = told.getMessage()
        assert hook.target in words
        assert "--hicache-storage-backend dynamic" in words
        assert json.loads(words[words.index("{") : words.rindex("}") + 1]) == json.loads(
            plugin.DYNAMIC_CONFIG
        )

    def test_a_registry_of_another_form_is_told_as_well(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.delattr(HookRegistry, "register")
        plugin.register()
        (told,) = caplog.records
        assert "--hicache-storage-backend dynamic" in told.getMessage()


def test_hooks_take_what_their_targets_are_called_with() -> None:
    for hook in plugin.hooks():
        original_or_result = object()
        inspect.signature(hook.function).bind(original_or_result, *hook.parameters)
