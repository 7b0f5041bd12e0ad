# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Modules that can be imported and have every name, but can do nothing.

SGLang imports GPU packages that a CPU run never calls. With this folder on PYTHONPATH they are
found here; what is called after all fails and says its name.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence

__all__ = ["stand_in"]


class _Missing:
    """Any attribute of such a module, and any attribute of that."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *_: object, **__: object) -> object:
        raise NotImplementedError(f"{self.__name__} is a stand-in: there is none for a CPU")

    def __getattr__(self, name: str) -> _Missing:
        return _missing(self.__name__, name)


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> _Missing:
        return _missing(self.__name__, name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module below `package`."""

    def __init__(self, package: str) -> None:
        self._prefix = package + "."

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None = None, _target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(self._prefix):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def stand_in(package: str) -> Callable[[str], _Missing]:
    """Makes all modules below `package`; returns what is to be its own `__getattr__`."""
    sys.meta_path.append(_Finder(package))
    return lambda name: _missing(package, name)


def _missing(parent: str, name: str) -> _Missing:
    if name.startswith("__"):
        raise AttributeError(f"{parent} has no {name}")
    return _Missing(f"{parent}.{name}")
