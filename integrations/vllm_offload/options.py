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

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from radixshmem_core.adapter_options import (
    check_milliseconds,
    check_text,
    given_options,
    refuse,
)

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
        given = given_options(cls, _WHERE, extra, _OF_VLLM, (PRIVATE,))
        settings = cls(**given)
        settings._check()
        return settings

    def _check(self) -> None:
        check_text(_WHERE, "endpoint", self.endpoint)
        if not isinstance(self.offload_prompt_only, bool):
            refuse(
                _WHERE, "offload_prompt_only", self.offload_prompt_only, "true or false, unquoted"
            )
        for name in ("wait_server_s", "transfer_timeout_s"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not math.isfinite(value) or value < 0:
                refuse(_WHERE, name, value, "a number of seconds, unquoted")
        if self.transfer_timeout_s == 0:
            refuse(_WHERE, "transfer_timeout_s", 0, "more than 0: every copy would have failed")
        check_milliseconds(_WHERE, "pull_timeout_ms", self.pull_timeout_ms)
