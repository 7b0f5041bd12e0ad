# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Options of `--hicache-storage-backend-extra-config`.

| option | default | meaning |
|---|---|---|
| `server_name` | required | name of the radix-server, as given to its `--name` |
| `endpoint` | | its socket, when it is not at the usual place |
| `revision` | | of the weights, in place of `--revision`: only engines of the same share pages |
| `pull_timeout_ms` | 1000 | deadline of a fetch from another node |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from radixshmem_core.adapter_options import check_milliseconds, check_text, given_options

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
        given = given_options(cls, _WHERE, extra, _OF_SGLANG)
        if "backend_name" in extra and not extra.get("interface_v1"):
            raise ValueError(
                f'{_WHERE} lacks "interface_v1": 1, without which SGLang hands the dynamic backend '
                "no pages"
            )
        settings = cls(**given)
        check_text(_WHERE, "endpoint", settings.endpoint)
        check_text(_WHERE, "revision", settings.revision)
        check_milliseconds(_WHERE, "pull_timeout_ms", settings.pull_timeout_ms)
        return settings
