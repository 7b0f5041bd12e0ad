# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The `sglang.srt.plugins` entry point: makes `--hicache-storage-backend radixshmem` known.

SGLang's list of storage backends is closed in several places; each is opened by one hook, and one
completes the keys of the prefix. They do nothing for other backends. Where SGLang has changed so
that a hook has no target, one warning names the way that needs none: the backend `dynamic`.
"""

from __future__ import annotations

import inspect
import logging
import pkgutil
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

__all__ = ["DYNAMIC_CONFIG", "NAME", "register"]

NAME = "radixshmem"
_MODULE = "radixshmem.integrations.sglang_hicache"
_CLASS = "RadixShmemStorage"
DYNAMIC_CONFIG = (
    f'{{"backend_name": "{NAME}", "module_path": "{_MODULE}", "class_name": "{_CLASS}", '
    '"interface_v1": 1, "hicache_storage_pass_prefix_keys": true, "server_name": "/kv_cache"}'
)

_log = logging.getLogger("radixshmem.sglang")
_registered = False


def register() -> None:
    """Called by SGLang in each of its processes."""
    global _registered
    if _registered:
        return
    _registered = True
    try:
        from sglang.srt.mem_cache.storage import StorageBackendFactory
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        wanted = hooks()
        missing = [hook.target for hook in wanted if not _takes(hook.target, hook.parameters)]
        if missing:
            _warn(f"it has no {' and no '.join(missing)} as expected")
            return
        for hook in wanted:
            HookRegistry.register(hook.target, hook.function, HookType[hook.kind])
        StorageBackendFactory.register_backend(NAME, _MODULE, _CLASS)
    except (ImportError, AttributeError, TypeError) as error:
        _warn(str(error))


class Hook(NamedTuple):
    target: str
    parameters: tuple[str, ...]  # the first ones of the target
    function: Callable[..., Any]
    kind: str  # a name of SGLang's HookType


def hooks() -> tuple[Hook, ...]:
    srt = "sglang.srt"
    cache = f"{srt}.mem_cache"
    return (
        Hook(f"{srt}.server_args.ServerArgs.add_cli_args", ("parser",), _offer_name, "AFTER"),
        Hook(
            f"{cache}.storage.backend_factory.StorageBackendFactory._create_builtin_backend",
            ("cls", "backend_name", "backend_class", "storage_config", "mem_pool_host"),
            _create_backend,
            "AROUND",
        ),
        Hook(
            f"{srt}.managers.cache_controller.HiCacheController.attach_storage_backend",
            ("self", "storage_backend"),
            _attach_backend,
            "AROUND",
        ),
        Hook(
            f"{cache}.hybrid_cache.hybrid_cache_controller.HybridCacheController"
            ".attach_storage_backend",
            ("self", "storage_backend"),
            _attach_or_undo,
            "AROUND",
        ),
        Hook(
            f"{cache}.unified_cache.storage_attachment.StorageAttachment.apply_runtime_config",
            ("self",),
            _apply_config,
            "AROUND",
        ),
        Hook(
            f"{cache}.unified_radix_cache.UnifiedRadixCache.get_prefix_hash_values",
            ("self", "node_id"),
            _complete_prefix,
            "AROUND",
        ),
    )


def _takes(target: str, parameters: Sequence[str]) -> bool:
    """Whether `target` is a function whose first parameters are these."""
    try:
        function = pkgutil.resolve_name(target)
    except (ImportError, AttributeError):
        return False
    function = inspect.unwrap(getattr(function, "__func__", function))
    return list(inspect.signature(function).parameters)[: len(parameters)] == list(parameters)


def _warn(reason: str) -> None:
    import sglang

    _log.warning(
        "radixshmem: --hicache-storage-backend radixshmem does not work with SGLang %s: %s. Use "
        "--hicache-storage-backend dynamic --hicache-storage-backend-extra-config '%s'",
        *(getattr(sglang, "__version__", "?"), reason, DYNAMIC_CONFIG),
    )


def _offer_name(result: object, parser: ArgumentParser, *_: Any, **__: Any) -> None:
    """After ServerArgs.add_cli_args: one more choice."""
    for action in parser._actions:
        choices = action.choices
        if action.dest == "hicache_storage_backend" and choices and NAME not in choices:
            action.choices = [*choices, NAME]


def _create_backend(
    original: Callable[..., Any],
    cls: type,
    backend_name: str,
    backend_class: Any,
    config: Any,
    *rest: Any,
) -> Any:
    if backend_name == NAME:
        return backend_class(config)
    return original(cls, backend_name, backend_class, config, *rest)


def _attach_backend(
    original: Callable[..., None], controller: Any, storage_backend: str, *args: Any, **kwargs: Any
) -> None:
    """SGLang hands whole pages over, without a copy, to the backends on a list of its own."""
    original(controller, storage_backend, *args, **kwargs)
    if storage_backend == NAME:
        controller.page_get_func = controller._page_get_zero_copy
        controller.page_set_func = controller._page_set_zero_copy


def _attach_or_undo(
    original: Callable[..., None], controller: Any, storage_backend: str, *args: Any, **kwargs: Any
) -> None:
    """SGLang leaves a backend half attached that refuses its host pools."""
    try:
        original(controller, storage_backend, *args, **kwargs)
    except Exception:
        if controller.enable_storage and _is_ours(controller):
            controller.detach_storage_backend()
        raise


def _apply_config(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """SGLang tells keys of the prefix only to those who ask; an index by prefix needs them."""
    if kwargs.get("storage_backend") == NAME:
        kwargs["hicache_storage_pass_prefix_keys"] = True
    original(*args, **kwargs)


def _complete_prefix(original: Callable[..., list[str]], cache: Any, node: Any) -> list[str]:
    """SGLang leaves out the keys of the last node before those that it asks for."""
    keys = original(cache, node)
    if _is_ours(cache.cache_controller):
        own = list(cache.tree_core.get_hash_values(node))
        if keys[len(keys) - len(own) :] != own:
            return [*keys, *own]
    return keys


def _is_ours(controller: Any) -> bool:
    backend = getattr(controller, "storage_backend_type", None)
    if backend == "dynamic":
        backend = (controller.storage_config.extra_config or {}).get("backend_name")
    return bool(backend == NAME)
