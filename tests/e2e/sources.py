# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Reads classes and signatures from source files without importing them."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterator
from pathlib import Path

Kind = inspect._ParameterKind


class Sources:
    """A folder that holds a package's source files."""

    def __init__(self, root: Path, package: str) -> None:
        self.root = root
        self._package = package

    @functools.cache  # noqa: B019 - a few, for the length of the tests
    def module(self, name: str) -> ast.Module | None:
        path = self.root / name.removeprefix(self._package).lstrip(".").replace(".", "/")
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return ast.parse(file.read_text(encoding="utf-8"), str(file))
        return None

    def modules(self) -> Iterator[ast.Module]:
        """Those of the folder itself."""
        for file in sorted(self.root.glob("*.py")):
            yield ast.parse(file.read_text(encoding="utf-8"), str(file))

    def has(self, module: str, name: str) -> bool:
        """Whether `from module import name` would find it."""
        if self.module(f"{module}.{name}") is not None:
            return True
        tree = self.module(module)
        return tree is not None and name in names(tree)

    def cls(self, module: str, name: str) -> ast.ClassDef:
        tree = self.module(module)
        assert tree is not None, f"there is no {module}"
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name == name:
                return node
        raise AssertionError(f"{module} has no class {name}")


def names(tree: ast.Module) -> set[str]:
    """What a module defines or imports, wherever that stands."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)  # the key of a table of lazy imports
    return found


def methods(cls: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in cls.body if isinstance(node, ast.FunctionDef)}


def has_decorator(function: ast.FunctionDef, name: str) -> bool:
    return any(isinstance(d, ast.Name) and d.id == name for d in function.decorator_list)


def attributes(cls: ast.ClassDef) -> set[str]:
    """Fields, methods, and what is assigned to `self`."""
    found: set[str] = set()
    for node in ast.walk(cls):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
    return found


def signature(function: ast.FunctionDef) -> inspect.Signature:
    """Names, kinds and defaults; `...` stands for any default."""
    args = function.args
    positional = [
        *((arg, Kind.POSITIONAL_ONLY) for arg in args.posonlyargs),
        *((arg, Kind.POSITIONAL_OR_KEYWORD) for arg in args.args),
    ]
    without = len(positional) - len(args.defaults)
    parameters = [
        inspect.Parameter(arg.arg, kind, default=... if i >= without else inspect.Parameter.empty)
        for i, (arg, kind) in enumerate(positional)
    ]
    if args.vararg:
        parameters.append(inspect.Parameter(args.vararg.arg, Kind.VAR_POSITIONAL))
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        parameters.append(
            inspect.Parameter(
                arg.arg,
                Kind.KEYWORD_ONLY,
                default=inspect.Parameter.empty if default is None else ...,
            )
        )
    if args.kwarg:
        parameters.append(inspect.Parameter(args.kwarg.arg, Kind.VAR_KEYWORD))
    return inspect.Signature(parameters)


def refusals(ours: inspect.Signature, theirs: inspect.Signature) -> list[str]:
    """What callers of `theirs` may do and `ours` does not accept."""
    found = []
    any_keyword = any(p.kind is Kind.VAR_KEYWORD for p in ours.parameters.values())
    any_position = any(p.kind is Kind.VAR_POSITIONAL for p in ours.parameters.values())
    order = [p.name for p in ours.parameters.values() if p.kind is Kind.POSITIONAL_OR_KEYWORD]
    for index, (name, their) in enumerate(theirs.parameters.items()):
        our = ours.parameters.get(name)
        by_position = their.kind is Kind.POSITIONAL_OR_KEYWORD
        if their.kind is Kind.VAR_KEYWORD:
            if not any_keyword:
                found.append(f"**{name} is not accepted")
        elif their.kind is Kind.VAR_POSITIONAL:
            if not any_position:
                found.append(f"*{name} is not accepted")
        elif our is None:
            if not any_keyword or (by_position and not any_position):
                found.append(f"{name} is missing")
        elif by_position and order[index : index + 1] != [name]:
            found.append(f"{name} is not number {index}")
        elif their.default is not inspect.Parameter.empty and our.default is our.empty:
            found.append(f"{name} has no default")
    for name, our in ours.parameters.items():
        optional = our.default is not our.empty or our.kind in (
            Kind.VAR_KEYWORD,
            Kind.VAR_POSITIONAL,
        )
        if name not in theirs.parameters and not optional:
            found.append(f"{name} is required, and nobody passes it")
    return found


def calls(function: ast.FunctionDef, owner: str) -> Iterator[tuple[str, ast.Call]]:
    """Calls `self.<owner>.<name>(...)`, in the order of the source."""
    for node in _in_order(function):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and ast.unparse(node.func.value) == f"self.{owner}"
        ):
            yield node.func.attr, node


def own_calls(function: ast.FunctionDef) -> Iterator[str]:
    """Names of the methods of the same object that are called, in the order of the source."""
    for node in _in_order(function):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "self"
        ):
            yield node.func.attr


def _in_order(function: ast.FunctionDef) -> list[ast.expr]:
    found = [node for node in ast.walk(function) if isinstance(node, ast.expr)]
    return sorted(found, key=lambda node: (node.lineno, node.col_offset))
