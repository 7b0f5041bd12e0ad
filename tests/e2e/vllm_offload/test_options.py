# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Options of kv_connector_extra_config that are misspelled or of the wrong kind are told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from e2e.vllm_offload.contracts import offloading_config, vllm_config
from e2e.vllm_offload.engines import CONFIG
from vllm.config import KVTransferConfig
from vllm.v1.kv_cache_interface import KVCacheConfig

from radixshmem.integrations.vllm_offload import RadixShmemOffloadingSpec
from radixshmem.integrations.vllm_offload.options import Settings
from radixshmem.integrations.vllm_offload.settings import prepare


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ({"wait_servers_s": 5}, "unknown option 'wait_servers_s'; did you mean wait_server_s"),
        ({"cpu_bytes_to_use": 1 << 30}, "unknown option 'cpu_bytes_to_use' .*server_name"),
        ({"server_name": None}, "lacks 'server_name'"),
        ({"server_name": "kv_cache"}, "server_name is 'kv_cache'; it must start with \"/\""),
        ({"server_name": 7}, "server_name is 7"),
        ({"endpoint": 7}, "endpoint is 7"),
        ({"offload_prompt_only": "false"}, "offload_prompt_only is 'false'; .*true or false"),
        ({"wait_server_s": "60"}, "wait_server_s is '60'; it must be a number"),
        ({"wait_server_s": -1}, "wait_server_s is -1"),
        ({"transfer_timeout_s": float("nan")}, "transfer_timeout_s is nan"),
        ({"transfer_timeout_s": 0}, "transfer_timeout_s is 0; it must be more than 0"),
        ({"pull_timeout_ms": True}, "pull_timeout_ms is True"),
        ({"pull_timeout_ms": 0.5}, "pull_timeout_ms is 0.5; it must be a whole number"),
    ],
)
def test_an_option_that_does_not_work_is_told(option: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=f"kv_connector_extra_config.*{told}"):
        RadixShmemOffloadingSpec(offloading_config("/radixshmem_nobody", extra=option))


def test_what_was_given_is_taken_and_the_rest_has_defaults() -> None:
    given = {"server_name": "/a", "wait_server_s": 2, "endpoint": None, "offload_prompt_only": True}
    vllms_and_ours = {"self_describing_kv_events": False, "block_size": 16, "radixshmem_role": []}
    assert Settings.of(given | vllms_and_ours) == Settings(
        "/a", wait_server_s=2, offload_prompt_only=True
    )


def test_the_options_of_the_file_that_users_copy_are_known() -> None:
    transfer = json.loads(CONFIG.read_text(encoding="utf-8"))
    assert Settings.of(transfer["kv_connector_extra_config"]) == Settings("/kv_cache")


def test_a_load_never_runs_inside_a_step_and_a_failed_one_is_computed(llama: str) -> None:
    extra = {"server_name": "/a", "sync_load_budget_bytes": 1 << 30}
    transfer = KVTransferConfig(
        kv_connector="RadixShmemConnector",
        kv_role="kv_both",
        kv_load_failure_policy="fail",
        kv_connector_extra_config=extra,
    )
    config = vllm_config(llama, kv_transfer_config=transfer)
    prepare(config, KVCacheConfig(num_blocks=1, kv_cache_tensors=[], kv_cache_groups=[]))
    assert config.kv_transfer_config is not None
    assert config.kv_transfer_config.kv_connector_extra_config["sync_load_budget_bytes"] == 0
    assert config.kv_transfer_config.kv_load_failure_policy == "recompute"
