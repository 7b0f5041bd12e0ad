# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What the adapter takes for granted of SGLang, read from the wheel of each version.

They are unpacked into build/sglang-sources (see scripts/sglang_sources.py) and not imported.
"""

from __future__ import annotations

import ast
import importlib.metadata
import re

import pytest
from e2e import sources
from e2e.sglang_hicache.contract import (
    ATTACHMENT,
    CACHE,
    CONTROLLER,
    FACTORY,
    HYBRID,
    OURS,
    REQUIRED,
    STORAGE,
    UNPACKED,
    VERSIONS,
    called,
    fields,
    find,
    imported,
    members,
    python_files,
)
from e2e.sources import Sources

from radixshmem.integrations.sglang_hicache import plugin

EACH = pytest.mark.parametrize("sglang", VERSIONS.values(), ids=VERSIONS.keys())
_TREES = (
    ("sglang.srt.mem_cache.unified_cache.unified_tree_core", "UnifiedTreeCore"),
    ("sglang.srt.mem_cache.rust_tree_core.adapter", "RustUnifiedTreeCore"),
)


def test_every_supported_version_is_there() -> None:
    for version in REQUIRED:
        assert version in VERSIONS, f"run: python scripts/sglang_sources.py {UNPACKED} {version}"


def test_the_installed_version_is_a_supported_one() -> None:
    assert importlib.metadata.version("sglang") in REQUIRED


@EACH
@pytest.mark.parametrize("hook", plugin.hooks(), ids=lambda hook: hook.target.split(".")[-1])
def test_each_hook_has_its_target(sglang: Sources, hook: plugin.Hook) -> None:
    function = find(sglang, hook.target)
    assert function is not None
    parameters = sources.signature(function).parameters
    assert tuple(parameters)[: len(hook.parameters)] == hook.parameters


@EACH
def test_the_plugin_group_is_ours(sglang: Sources) -> None:
    tree = sglang.module("sglang.srt.plugins")
    assert tree is not None
    assert "sglang.srt.plugins" in sources.names(tree)
    for dotted in ("hook_registry.HookRegistry.register", "load_plugins"):
        assert find(sglang, f"sglang.srt.plugins.{dotted}") is not None
    names = members(sglang.cls("sglang.srt.plugins.hook_registry", "HookType"))
    assert {hook.kind for hook in plugin.hooks()} <= names.keys()


@EACH
def test_the_backend_is_an_option_with_choices(sglang: Sources) -> None:
    """The hook adds a name to the choices of this one."""
    texts = [
        path.read_text(encoding="utf-8") for path in sglang.root.glob("srt/arg_groups/**/*.py")
    ]
    field = re.compile(r"^    hicache_storage_backend: A\[.*?choices=", re.DOTALL | re.MULTILINE)
    assert any(field.search(text) for text in texts)


@EACH
def test_a_class_by_name_is_constructed_with_the_config_and_a_dict(sglang: Sources) -> None:
    """As `dynamic` does; the hook of the other factory gives the config alone."""
    function = sources.methods(sglang.cls(*FACTORY))["_create_dynamic_backend"]
    (call,) = called(function, "backend_class")
    assert [ast.unparse(argument) for argument in call.args] == ["storage_config", "kwargs"]


@EACH
def test_a_class_is_registered_by_its_name(sglang: Sources) -> None:
    register = find(sglang, ".".join((*FACTORY, "register_backend")))
    assert register is not None
    names = list(sources.signature(register).parameters)
    assert names == ["cls", "name", "module_path", "class_name"]


@EACH
def test_whole_pages_are_what_the_hook_switches_to(sglang: Sources) -> None:
    attach = sources.methods(sglang.cls(*CONTROLLER))["attach_storage_backend"]
    assigned = {
        ast.unparse(node.targets[0]): ast.unparse(node.value)
        for node in ast.walk(attach)
        if isinstance(node, ast.Assign) and "zero_copy" in ast.unparse(node.value)
    }
    assert assigned == {
        "self.page_get_func": "self._page_get_zero_copy",
        "self.page_set_func": "self._page_set_zero_copy",
    }
    assert "interface_v1" in ast.unparse(attach)
    hybrid = sources.methods(sglang.cls(*HYBRID))["attach_storage_backend"]
    assert "super().attach_storage_backend" in ast.unparse(hybrid)


@EACH
def test_one_call_publishes_whether_keys_of_the_prefix_are_passed(sglang: Sources) -> None:
    """Everybody names the backend and the option, so that the hook can change the option."""
    option = "hicache_storage_pass_prefix_keys"
    publish = sources.methods(sglang.cls(*ATTACHMENT))["apply_runtime_config"]
    given = sources.signature(publish).parameters
    assert {given[name].kind for name in (option, "storage_backend")} == {sources.Kind.KEYWORD_ONLY}
    assert f"cache.{option} = {option}" in ast.unparse(publish)
    calls = []
    for module in (ATTACHMENT[0], CACHE[0]):
        tree = sglang.module(module)
        assert tree is not None
        calls += list(called(tree, "apply_runtime_config"))
    assert len(calls) == 2, "at start, and at run time"
    for call in calls:
        assert {option, "storage_backend"} <= {keyword.arg for keyword in call.keywords}


@EACH
def test_servers_use_the_cache_that_the_hooks_are_in(sglang: Sources) -> None:
    """SGLang 0.5.20 still has another one, which nobody imports."""
    registry = (sglang.root / "srt/mem_cache/registry.py").read_text(encoding="utf-8")
    assert re.search(r"cache = (\(cache_class or )?UnifiedRadixCache\)?\(params\)", registry)
    for path in python_files(sglang):
        text = path.read_text(encoding="utf-8")
        if "mem_cache.hiradix_cache" in text and path.name != "hiradix_cache.py":
            assert "sglang.srt.mem_cache.hiradix_cache" not in imported(ast.parse(text)), path


@EACH
def test_the_keys_of_a_prefix_lack_those_of_its_last_node(sglang: Sources) -> None:
    """What the hook completes, for whoever asks where a lookup starts."""
    for module, name in _TREES:
        assert {"get_prefix_hash_values", "get_hash_values"} <= sources.methods(
            sglang.cls(module, name)
        ).keys()
    python = sources.methods(sglang.cls(*_TREES[0]))["get_prefix_hash_values"]
    assert "node.get_prefix_hash_values(node.parent)" in ast.unparse(python)
    asked = "tree_cache.get_prefix_hash_values("
    callers = {
        path.name
        for path in python_files(sglang)
        if asked in path.read_text(encoding="utf-8") and "mem_cache" not in path.parts
    }
    assert callers == {"scheduler.py", "decode_hicache_mixin.py"}
    cache = sources.methods(sglang.cls(*CACHE))["get_prefix_hash_values"]
    assert "self.tree_core.get_prefix_hash_values(node_id)" in ast.unparse(cache)


_BACKEND = sources.methods(OURS.cls("storage", "RadixShmemStorage"))


@EACH
def test_overrides_accept_what_the_base_declares(sglang: Sources) -> None:
    theirs = sources.methods(sglang.cls(STORAGE, "HiCacheStorage"))
    overridden = _BACKEND.keys() & theirs.keys()
    assert len(overridden) >= 15
    for name in overridden:
        refused = sources.refusals(
            sources.signature(_BACKEND[name]), sources.signature(theirs[name])
        )
        assert not refused, f"{name}: {refused}"


@EACH
def test_nothing_abstract_is_left(sglang: Sources) -> None:
    theirs = sources.methods(sglang.cls(STORAGE, "HiCacheStorage"))
    abstract = {n for n, f in theirs.items() if sources.has_decorator(f, "abstractmethod")}
    assert abstract
    assert abstract <= _BACKEND.keys()


@EACH
def test_every_call_of_sglang_fits(sglang: Sources) -> None:
    seen = set()
    functions = [
        *sources.methods(sglang.cls(*CONTROLLER)).values(),
        *sources.methods(sglang.cls(*HYBRID)).values(),
        *sources.methods(sglang.cls(*CACHE)).values(),
    ]
    for function in functions:
        for node in ast.walk(function):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if not ast.unparse(node.func.value).endswith(".storage_backend"):
                continue
            seen.add(node.func.attr)
            signature = sources.signature(_BACKEND[node.func.attr])
            keywords = {keyword.arg or "" for keyword in node.keywords}
            signature.bind(None, *node.args, **dict.fromkeys(keywords))
    assert {"batch_exists_v2", "batch_get_v1", "batch_set_v2", "close", "get_stats"} <= seen
    assert ("on_host_pools_registered" in seen) == (_version(sglang) >= "0.5.23")


@EACH
def test_only_sidecars_of_the_oldest_version_come_without_their_prefix(sglang: Sources) -> None:
    bare = set()
    for cls in (CONTROLLER, HYBRID):
        for function in sources.methods(sglang.cls(*cls)).values():
            for name, call in sources.calls(function, "storage_backend"):
                told = len(call.args) + len(call.keywords)
                expected = {"v1": 3, "v2": 3 if "exists" in name else 2}.get(name[-2:])
                if expected is not None and told < expected:
                    bare.add(name)
    assert bare == ({"batch_get_v2", "batch_set_v2"} if _version(sglang) == "0.5.20" else set())


@EACH
def test_the_prefix_of_a_window_reaches_to_it(sglang: Sources) -> None:
    """Not of a Mamba state stored with `buffer_only`, nor of pages behind those that it skips."""
    grouped = find(sglang, f"{HYBRID[0]}._trailing_chain_groups")
    assert (grouped is None) == (_version(sglang) == "0.5.20")
    if grouped is not None:
        assert "prefix_keys + span_hashes[:covered]" in ast.unparse(grouped)
    trim = sources.methods(sglang.cls(*HYBRID))["trim_prefetch_full_head"]
    assert "prefix_keys" not in ast.unparse(trim)


@EACH
def test_before_the_second_batch_of_the_oldest_version_nothing_is_told_at_the_root(
    sglang: Sources,
) -> None:
    backup = sources.methods(sglang.cls(*CONTROLLER))["_page_backup"]
    tests = [ast.unparse(node.test) for node in ast.walk(backup) if isinstance(node, ast.If)]
    oldest = _version(sglang) == "0.5.20"
    grows = "prefix_keys and len(prefix_keys) > 0" if oldest else "prefix_keys is not None"
    assert [test for test in tests if "prefix_keys" in test] == [grows]


_READ = {
    "HiCacheStorageConfig": {
        *("tp_rank", "tp_size", "pp_rank", "pp_size", "attn_cp_rank", "attn_cp_size"),
        *("is_mla_model", "model_name", "extra_config"),
    },
    "HiCacheStorageExtraInfo": {"prefix_keys"},
    "PoolTransfer": {"name", "keys", "host_indices", "hit_policy"},
    "PoolTransferResult": {"kv_hit_pages", "extra_pool_hit_pages", "restorable_prefix_pages"},
}


@EACH
@pytest.mark.parametrize("cls", _READ)
def test_what_is_read_is_there(sglang: Sources, cls: str) -> None:
    assert _READ[cls] <= fields(sglang.cls(STORAGE, cls))


def test_nothing_else_is_read_of_the_config() -> None:
    read = {
        node.attr
        for tree in OURS.modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and ast.unparse(node.value) in ("config", "storage_config", "self._config")
    }
    assert read == _READ["HiCacheStorageConfig"]


@EACH
def test_keys_of_pages_tell_tenants_apart(sglang: Sources) -> None:
    """What the backend takes for a sign of it came with it."""
    sign = find(sglang, "sglang.srt.mem_cache.utils.get_storage_hash_str")
    assert sign is not None
    assert list(called(sign, "storage_namespace_seed"))


@EACH
def test_results_are_made_of_these_fields_in_this_order(sglang: Sources) -> None:
    made = sglang.cls(STORAGE, "PoolTransferResult")
    order = [node.target.id for node in made.body if isinstance(node, ast.AnnAssign)]
    assert order == ["kv_hit_pages", "extra_pool_hit_pages", "restorable_prefix_pages"]


_ALL_PAGES = {
    *("draft", "draft_indexer", "indexer"),
    *(f"deepseek_v4_c{ratio}" for ratio in (1, 2, 4, 128)),
    *(f"deepseek_v4_c{ratio}_rope" for ratio in (4, 128)),
    *(f"deepseek_v4_c{ratio}_indexer" for ratio in (1, 2, 4)),
    *(f"deepseek_v4_c{ratio}_indexer_scale" for ratio in (1, 2, 4)),
}


@EACH
def test_each_pool_that_sglang_names_has_a_place_or_is_refused(sglang: Sources) -> None:
    pools = OURS.module("ours.pools")
    assert pools is not None
    placed = {}
    for node in pools.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in ("_TRAILING", "_SECOND_SWA"):
                container = node.value.keys if isinstance(node.value, ast.Dict) else node.value.elts
                placed[name] = {key.value for key in container}
    names = set(members(sglang.cls(STORAGE, "PoolName")).values())
    assert names - {"kv"} - placed["_TRAILING"] - placed["_SECOND_SWA"] <= _ALL_PAGES
    assert set(members(sglang.cls(STORAGE, "PoolHitPolicy")).values()) <= {
        *("all_pages", "trailing_pages"),
        *({"block_groups"} if _version(sglang) >= "0.5.22" else ()),
    }


def _version(sglang: Sources) -> str:
    return next(name for name, each in VERSIONS.items() if each is sglang)


@EACH
def test_every_name_that_is_imported_exists(sglang: Sources) -> None:
    missing = []
    for module in OURS.modules():
        for node in ast.walk(module):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang."):
                assert node.module is not None
                missing += [
                    f"{node.module}.{alias.name}"
                    for alias in node.names
                    if not sglang.has(node.module, alias.name)
                ]
    assert missing == []


@EACH
@pytest.mark.parametrize(
    ("module", "cls"),
    [
        ("mha", "MHATokenToKVPoolHost"),
        ("mla", "MLATokenToKVPoolHost"),
        ("mamba", "MambaPoolHost"),
        ("dsa", "DSAIndexerPoolHost"),
    ],
)
def test_host_pools_hand_out_pages_in_place(sglang: Sources, module: str, cls: str) -> None:
    pool = sglang.cls(f"sglang.srt.mem_cache.pool_host.{module}", cls)
    parameters = sources.signature(sources.methods(pool)["get_page_buffer_meta"]).parameters
    assert list(parameters) == ["self", "indices"]
    assert "layout" in ast.unparse(pool)


@EACH
def test_the_figures_that_sglang_takes_have_these_names(sglang: Sources) -> None:
    metrics = sglang.cls("sglang.srt.observability.metrics_collector", "StorageMetrics")
    assert fields(metrics) >= {
        *("prefetch_pgs", "backup_pgs", "prefetch_bandwidth", "backup_bandwidth")
    }


@EACH
def test_arguments_that_are_read_exist(sglang: Sources) -> None:
    read = {
        call.args[0].value
        for module in OURS.modules()
        for call in called(module, "argument")
        if isinstance(call.args[0], ast.Constant)
    }
    assert read
    found = set()
    for path in sglang.root.glob("srt/arg_groups/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(node.target.id)
    assert read <= found
    assert find(sglang, "sglang.srt.runtime_context.get_server_args") is not None
