# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""SGLang's sources, of each supported version, and ours: read, not imported."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from e2e import sources
from e2e.sources import Sources

REQUIRED = ("0.5.20", "0.5.21", "0.5.22", "0.5.23")

UNPACKED = Path(__file__).parents[3] / "build/sglang-sources"
VERSIONS = {
    folder.parent.name: Sources(folder, "sglang")
    for folder in sorted(UNPACKED.glob("*/sglang"))
    if folder.parent.name in REQUIRED
}

STORAGE = "sglang.srt.mem_cache.hicache_storage"
CONTROLLER = "sglang.srt.managers.cache_controller", "HiCacheController"
HYBRID = "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller", "HybridCacheController"
CACHE = "sglang.srt.mem_cache.unified_radix_cache", "UnifiedRadixCache"
ATTACHMENT = "sglang.srt.mem_cache.unified_cache.storage_attachment", "StorageAttachment"
FACTORY = "sglang.srt.mem_cache.storage.backend_factory", "StorageBackendFactory"


def _ours() -> Sources:
    spec = importlib.util.find_spec("radixshmem")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder = Path(spec.submodule_search_locations[0]) / "integrations/sglang_hicache"
    return Sources(folder, "ours")


OURS = _ours()


def find(sglang: Sources, dotted: str) -> ast.FunctionDef | None:
    """The method or function of this dotted name."""
    module, _, name = dotted.rpartition(".")
    if sglang.module(module) is None:
        module, _, cls = module.rpartition(".")
        if sglang.module(module) is None:
            return None
        return sources.methods(sglang.cls(module, cls)).get(name)
    tree = sglang.module(module)
    assert tree is not None
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    return next((function for function in functions if function.name == name), None)


def fields(cls: ast.ClassDef) -> set[str]:
    """Those of a dataclass, and its properties."""
    found = {
        node.target.id
        for node in cls.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    methods = sources.methods(cls).values()
    return found | {m.name for m in methods if sources.has_decorator(m, "property")}


def members(cls: ast.ClassDef) -> dict[str, str]:
    """Those of an enumeration of strings."""
    return {
        node.targets[0].id: node.value.value
        for node in cls.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }


def python_files(sglang: Sources) -> Iterator[Path]:
    return sglang.root.rglob("*.py")


def called(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    """Calls of anything of this name, as a function or as a method."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            if name == getattr(function, "attr", getattr(function, "id", None)):
                yield node


def imported(tree: ast.AST) -> set[str]:
    """The modules that running this imports, which leaves out those for type checkers."""
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            found |= imported(node)
    return found
