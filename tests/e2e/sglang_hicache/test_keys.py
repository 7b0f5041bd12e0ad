# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""SGLang's keys of pages, which tell tenants and LoRA adapters apart, and what is made of them."""

from __future__ import annotations

from array import array

from e2e.sglang_hicache.node import prompt
from e2e.sglang_hicache.rank_pages import page_keys, path_of
from sglang.srt.lora.lora_registry import LoRARef
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.utils import get_storage_hash_str
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang_server import PAGE_TOKENS

from radixshmem import fold_page_keys

A = prompt(81, 4, 0)
NAME = "tenant"


def keys_of(**of_request: str | None) -> list[str]:
    """Of the pages of A, in a request with these fields."""
    tokens = array("q", A)
    request = Req("0", "", tokens, SamplingParams(), **of_request)
    key = RadixKey(tokens, extra_key=request.extra_key, cache_salt=request.cache_salt)
    keys: list[str] = get_storage_hash_str(key, page_size=PAGE_TOKENS)
    return keys


def test_a_lora_adapter_named_like_a_salt_is_no_salt() -> None:
    lora = LoRARef(LoRARef.deterministic_id(NAME, "/adapters/tenant"), NAME).lora_id
    requests: list[dict[str, str | None]] = [
        {},
        {"cache_salt": NAME},
        {"extra_key": NAME},
        {"extra_key": NAME, "cache_salt": NAME},
        {"lora_id": lora},
        {"lora_id": lora, "cache_salt": NAME},
        {"lora_id": lora, "extra_key": NAME},
        {"cache_salt": lora},
    ]
    pages = [page for each in requests for page in fold_page_keys(keys_of(**each)).tolist()]
    assert len(set(pages)) == len(requests) * 4


def test_keys_of_the_tests_are_those_of_sglang() -> None:
    assert page_keys(A) == keys_of()
    assert len({path_of(A, rank)[0] for rank in range(8)}) == 8
    assert path_of(A, 0)[0] == fold_page_keys(keys_of())[0]
