# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Options of `kv_connector_extra_config`.

| option | default | meaning |
|---|---|---|
| `server_name` | required | name of the radix-server, as given to its `--name` |
| `endpoint` | | its socket, when it is not at the usual place |
| `wait_server_s` | 30 | how long to wait for the server at the start |
| `pull_timeout_ms` | 5000 | deadline of a fetch from another node |
| `offload_prompt_only` | false | do not store blocks that were generated |
| `transfer_timeout_s` | 60 | a copy between GPU and slots that takes longer has failed |
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from radixshmem_core.config import check_name
from radixshmem_core.options import near_names

__all__ = ["PRIVATE", "Settings"]

_WHERE = "kv_connector_extra_config"
PRIVATE = "radixshmem_"  # begin of the keys that our own parts give each other
_OF_VLLM = (  # what vLLM reads for any spec; spec.py refuses the values that do not work
    "spec_name",
    "spec_module_path",
    "self_describing_kv_events",
    "sync_load_budget_bytes",
    "blocks_per_chunk",
    "block_size",
    "canonical_layout",
)


@dataclass(frozen=True, slots=True)
class Settings:
    server_name: str
    endpoint: str | None = None
    wait_server_s: float = 30
    pull_timeout_ms: int = 5000
    offload_prompt_only: bool = False
    transfer_timeout_s: float = 60

    @classmethod
    def of(cls, extra: Mapping[str, Any]) -> Settings:
        """ValueError, naming the option and what would work, for one that is unknown or wrong."""
        known = [field.name for field in dataclasses.fields(cls)]
        for key in extra:
            if key not in known and key not in _OF_VLLM and not key.startswith(PRIVATE):
                raise ValueError(
                    f"{_WHERE}: unknown option {key!r}{near_names(key, known)} "
                    f"(radixshmem knows {', '.join(known)})"
                )
        if not extra.get("server_name"):
            raise ValueError(
                f"{_WHERE} lacks 'server_name': the --name of the radix-server on this node, "
                'such as "/kv_cache"'
            )
        values = {key: extra[key] for key in known if extra.get(key) is not None}
        settings = cls(**values)
        settings._check()
        return settings

    def _check(self) -> None:
        check_name(f"{_WHERE}: server_name", self.server_name)
        if not isinstance(self.endpoint, str | None):
            _refuse("endpoint", self.endpoint, "a text such as unix:///run/kv.sock")
        if not isinstance(self.offload_prompt_only, bool):
            _refuse("offload_prompt_only", self.offload_prompt_only, "true or false, unquoted")
        for name in ("wait_server_s", "transfer_timeout_s"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not math.isfinite(value) or value < 0:
                _refuse(name, value, "a number of seconds, unquoted")
        if self.transfer_timeout_s == 0:
            _refuse("transfer_timeout_s", 0, "more than 0: every copy would have failed")
        milliseconds = self.pull_timeout_ms
        if not isinstance(milliseconds, int) or isinstance(milliseconds, bool) or milliseconds < 0:
            _refuse("pull_timeout_ms", milliseconds, "a whole number of milliseconds, unquoted")


def _refuse(name: str, value: object, wanted: str) -> None:
    raise ValueError(f"{_WHERE}: {name} is {value!r}; it must be {wanted}")
