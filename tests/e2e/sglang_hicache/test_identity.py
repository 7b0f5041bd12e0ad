# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Engines whose pages mean something else are refused by the server of the others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from e2e.sglang_hicache.controllers import Rank

from radixshmem import GeometryMismatch
from radixshmem.integrations.sglang_hicache import identity
from radixshmem_core.server import RadixServer


@pytest.mark.parametrize(
    "option",
    [
        "revision",
        "json_model_override_args",
        "quantization",
        "kv_cache_dtype",
        "quantization_param_path",
        "speculative_draft_model_path",
    ],
)
def test_what_changes_the_bytes_of_a_page_changes_the_fingerprint(
    cache: RadixServer,
    start_rank: Callable[..., Rank],
    monkeypatch: pytest.MonkeyPatch,
    option: str,
) -> None:
    start_rank()
    start_rank()
    known = identity.argument
    monkeypatch.setattr(
        identity, "argument", lambda name: "other" if name == option else known(name)
    )
    with pytest.raises(GeometryMismatch, match="other"):
        start_rank()
