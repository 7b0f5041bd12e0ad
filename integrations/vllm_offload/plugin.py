# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The `vllm.general_plugins` entry point: tells vLLM the name RadixShmemConnector."""

from __future__ import annotations

import contextlib
import logging

from .log import share_handlers

__all__ = ["register"]

_NAME = "RadixShmemConnector"


def register() -> None:
    """Called by vLLM in each of its processes, more than once in some."""
    share_handlers(logging.getLogger("radixshmem"), logging.getLogger("vllm"))
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    with contextlib.suppress(ValueError):  # it is registered
        KVConnectorFactory.register_connector(
            _NAME, "radixshmem.integrations.vllm_offload.connector", _NAME
        )
