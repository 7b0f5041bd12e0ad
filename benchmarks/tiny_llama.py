# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The model of the demos and benchmarks with a real engine: a checkpoint of some 2 MB."""

from __future__ import annotations

__all__ = ["make_model"]


def make_model(folder: str) -> None:
    """A random Llama whose tokens vary, so that wrong KV bytes would change them."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=8192,
        initializer_range=0.15,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)
