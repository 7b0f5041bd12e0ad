# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Whose pages are whose: what the ranks' keys are folded with, and what engines must agree on."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from e2e.sglang_hicache.controllers import Rank
from sglang_rig import storage_config

from radixshmem import GeometryMismatch
from radixshmem.integrations.sglang_hicache import identity
from radixshmem.integrations.sglang_hicache.identity import geometry, rank_salt
from radixshmem.integrations.sglang_hicache.options import Settings
from radixshmem.integrations.sglang_hicache.pools import page_parts
from radixshmem_core.server import RadixServer

SHAPE = {
    "dtype": torch.float16,
    "layout": "page_first",
    "page_size": 4,
    "layer_num": 2,
    "head_num": 2,
    "head_dim": 4,
    "v_head_dim": 4,
}


def one_piece_each(indices: torch.Tensor) -> tuple[list[int], list[int]]:
    """Of a host pool: addresses and bytes of the pieces of these pages."""
    pages = len(indices) // SHAPE["page_size"]
    return [64 * page for page in range(pages)], [64] * pages


def config(**changed: Any) -> SimpleNamespace:
    return SimpleNamespace(**vars(storage_config()) | changed)


def fingerprint(shape: dict[str, Any] | None = None, **changed: Any) -> str:
    pool = SimpleNamespace(**(SHAPE | (shape or {})), get_page_buffer_meta=one_piece_each)
    parts = page_parts({"kv": pool}, shared_by_ranks=False)
    return geometry(config(**changed), parts, Settings("/kv"), 0).fingerprint


def test_each_rank_of_tensor_pipeline_and_context_has_keys_of_its_own() -> None:
    salts = [
        rank_salt(config(tp_rank=tensor, pp_rank=stage, attn_cp_rank=context))
        for tensor, stage, context in itertools.product(range(3), repeat=3)
    ]
    assert len(set(salts)) == 27
    assert salts[0] == 0


def test_tensor_ranks_that_have_the_same_pages_have_the_same_keys() -> None:
    def salts(**changed: Any) -> list[int]:
        return [rank_salt(config(is_mla_model=True, tp_rank=rank, **changed)) for rank in range(4)]

    assert salts() == [0] * 4
    assert len({*salts(pp_rank=1), *salts(attn_cp_rank=1), *salts()}) == 3
    sharded = [rank_salt(config(is_mla_model=True, tp_rank=r, dcp_rank=r % 2)) for r in range(4)]
    assert sharded[:2] == sharded[2:]
    assert sharded[0] != sharded[1]


def test_replicas_have_the_same_keys() -> None:
    assert rank_salt(config(dp_rank=3)) == rank_salt(config())
    assert fingerprint(dp_rank=3) == fingerprint()


@pytest.mark.parametrize(
    "changed",
    [
        {"model_name": "another"},
        {"tp_size": 2},
        {"pp_size": 2},
        {"attn_cp_size": 2},
        {"dcp_size": 2},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_engines_that_split_pages_otherwise_share_none(changed: dict[str, Any]) -> None:
    assert fingerprint(**changed) != fingerprint()


@pytest.mark.parametrize("rank", ["tp_rank", "pp_rank", "attn_cp_rank", "dcp_rank"])
def test_ranks_of_one_engine_share_a_server(rank: str) -> None:
    assert fingerprint(**{rank: 1}) == fingerprint()


@pytest.mark.parametrize(
    "shape",
    [
        {"dtype": torch.bfloat16},
        {"layout": "page_head"},
        {"layer_num": 4, "head_num": 1},
        {"head_num": 4, "head_dim": 2},
        {"head_dim": 6, "v_head_dim": 2},
    ],
    ids=lambda shape: next(iter(shape)),
)
def test_as_many_bytes_that_mean_something_else_are_other_pages(shape: dict[str, Any]) -> None:
    assert fingerprint(shape) != fingerprint()


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
