# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Options of `--hicache-storage-backend-extra-config`.

| option | default | meaning |
|---|---|---|
| `server_name` | required | name of the radix-server, as given to its `--name` |
| `endpoint` | | its socket, when it is not at the usual place |
| `revision` | | of the weights: engines share pages only if it is the same |
| `pull_timeout_ms` | 1000 | deadline of a fetch from another node |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from radixshmem_core.config import check_name
from radixshmem_core.options import near_names

__all__ = ["Settings"]

_WHERE = "--hicache-storage-backend-extra-config"
_OF_SGLANG = (  # what SGLang reads for any backend, as far as it leaves it in
    "backend_name",
    "module_path",
    "class_name",
    "interface_v1",
    "prefetch_threshold",
    "prefetch_timeout_base",
    "prefetch_timeout_per_ki_token",
    "hicache_storage_pass_prefix_keys",
    "file_storage_path",
)


@dataclass(frozen=True, slots=True)
class Settings:
    server_name: str
    endpoint: str | None = None
    revision: str | None = None
    pull_timeout_ms: int = 1000

    @classmethod
    def of(cls, extra: Mapping[str, Any] | None) -> Settings:
        """ValueError, naming the option and what would work, for one that is unknown or wrong."""
        extra = extra or {}
        known = [field.name for field in dataclasses.fields(cls)]
        for key in extra:
            if key not in known and key not in _OF_SGLANG:
                raise ValueError(
                    f"{_WHERE}: unknown option {key!r}{near_names(key, known)} "
                    f"(radixshmem knows {', '.join(known)})"
                )
        if not extra.get("server_name"):
            raise ValueError(
                f"{_WHERE} lacks 'server_name': the --name of the radix-server on this node, "
                'such as {"server_name": "/kv_cache"}'
            )
        if "backend_name" in extra and not extra.get("interface_v1"):
            raise ValueError(
                f'{_WHERE} lacks "interface_v1": 1, without which SGLang hands the dynamic backend '
                "no pages"
            )
        settings = cls(**{key: extra[key] for key in known if extra.get(key) is not None})
        settings._check()
        return settings

    def _check(self) -> None:
        check_name(f"{_WHERE}: server_name", self.server_name)
        for name in ("endpoint", "revision"):
            value = getattr(self, name)
            if not isinstance(value, str | None):
                _refuse(name, value, "a text")
        milliseconds = self.pull_timeout_ms
        if not isinstance(milliseconds, int) or isinstance(milliseconds, bool) or milliseconds < 0:
            _refuse("pull_timeout_ms", milliseconds, "a whole number of milliseconds, unquoted")


def _refuse(name: str, value: object, wanted: str) -> None:
    raise ValueError(f"{_WHERE}: {name} is {value!r}; it must be {wanted}")
