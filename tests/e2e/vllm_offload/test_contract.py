# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What the adapter takes for granted of vLLM, read from the sources of each version.

The installed version, and those in build/vllm-sources (see scripts/vllm_sources.py), which are not
imported: so a version is checked that no CPU build exists of.
"""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest
from e2e import sources
from e2e.sources import Sources

_REPOSITORY = Path(__file__).parents[3]
_UNPACKED = _REPOSITORY / "build/vllm-sources"
_REQUIRED = ("0.33.0",)

_V1 = "vllm.distributed.kv_transfer.kv_connector.v1"
_SCHEDULER = f"{_V1}.offloading.scheduler", "OffloadingConnectorScheduler"
_WORKER = f"{_V1}.offloading.worker", "OffloadingConnectorWorker"
_BASE = "vllm.v1.kv_offload.base"

# Our classes: module, name, and those of vLLM whose callers they face.
_CLASSES = {
    ("connector", "RadixShmemConnector"): [
        (f"{_V1}.offloading_connector", "OffloadingConnector"),
        (f"{_V1}.base", "KVConnectorBase_V1"),
    ],
    ("manager", "RadixShmemManager"): [(_BASE, "OffloadingManager")],
    ("worker", "RadixShmemWorker"): [(_BASE, "OffloadingWorker")],
    ("spec", "RadixShmemOffloadingSpec"): [(_BASE, "OffloadingSpec")],
    ("transfer", "WorkerMetadata"): [(f"{_V1}.offloading.common", "OffloadingWorkerMetadata")],
}

# Names that are private, or that no interface declares.
_TOUCHED = [
    (f"{_V1}.offloading_connector", "OffloadingConnector", "connector_scheduler"),
    (f"{_V1}.offloading_connector", "OffloadingConnector", "connector_worker"),
    (*_SCHEDULER, "manager"),
    (*_SCHEDULER, "_req_status"),
    (f"{_V1}.offloading.scheduler", "RequestOffloadState", "group_states"),
    (f"{_V1}.offloading.scheduler", "RequestGroupState", "block_ids"),
    (*_WORKER, "worker"),
    (f"{_V1}.offloading.common", "OffloadingWorkerMetadata", "completed_jobs"),
    (f"{_V1}.base", "KVConnectorTransferResults", "failed_recving"),
    (f"{_V1}.base", "KVConnectorTransferResults", "finished_recving"),
    ("vllm.config.kv_transfer", "KVTransferConfig", "kv_load_failure_policy"),
    ("vllm.v1.outputs", "KVConnectorOutput", "failed_recving"),
    ("vllm.v1.outputs", "KVConnectorOutput", "finished_recving"),
    ("vllm.v1.outputs", "KVConnectorOutput", "kv_connector_worker_meta"),
]

OURS = Sources(
    Path(importlib.util.find_spec("radixshmem").submodule_search_locations[0])  # type: ignore
    / "integrations/vllm_offload",
    "ours",
)


def _versions() -> dict[str, Sources]:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    found = {"installed": Sources(Path(spec.submodule_search_locations[0]), "vllm")}
    for folder in sorted(_UNPACKED.glob("*/vllm")):
        found[folder.parent.name] = Sources(folder, "vllm")
    return found


VERSIONS = _versions()
EACH = pytest.mark.parametrize("vllm", VERSIONS.values(), ids=VERSIONS.keys())


def test_the_versions_without_a_cpu_build_are_there() -> None:
    for version in _REQUIRED:
        assert version in VERSIONS, (
            f"run: python scripts/vllm_sources.py {version} build/vllm-sources/{version}"
        )


@EACH
@pytest.mark.parametrize("ours", _CLASSES, ids=lambda key: key[1])
def test_overrides_accept_what_their_base_declares(vllm: Sources, ours: tuple[str, str]) -> None:
    mine = sources.methods(OURS.cls(*ours))
    for base in _CLASSES[ours]:
        theirs = sources.methods(vllm.cls(*base))
        for name in mine.keys() & theirs.keys() - {"__init__"}:
            refused = sources.refusals(
                sources.signature(mine[name]), sources.signature(theirs[name])
            )
            assert not refused, f"{ours[1]}.{name} against {base[1]}: {refused}"
            for kind in ("property", "classmethod", "staticmethod"):
                assert sources.has_decorator(mine[name], kind) == sources.has_decorator(
                    theirs[name], kind
                ), f"{ours[1]}.{name}: {kind}"


@EACH
@pytest.mark.parametrize("ours", _CLASSES, ids=lambda key: key[1])
def test_nothing_abstract_is_left(vllm: Sources, ours: tuple[str, str]) -> None:
    mine = sources.methods(OURS.cls(*ours)).keys()
    inherited: set[str] = set()
    for base in _CLASSES[ours]:
        theirs = sources.methods(vllm.cls(*base))
        abstract = {n for n, f in theirs.items() if sources.has_decorator(f, "abstractmethod")}
        assert abstract <= mine | inherited
        inherited |= theirs.keys() - abstract


@EACH
def test_every_name_that_is_imported_exists(vllm: Sources) -> None:
    missing = []
    for module in OURS.modules():
        for node in ast.walk(module):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("vllm."):
                continue
            assert node.module is not None
            if vllm.module(node.module) is None and _outside(node.module):
                continue
            missing += [
                f"{node.module}.{alias.name}"
                for alias in node.names
                if not vllm.has(node.module, alias.name)
            ]
    assert missing == []


def _outside(module: str) -> bool:
    """Whether scripts/vllm_sources.py leaves it out."""
    return not module.startswith(("vllm.distributed", "vllm.v1", "vllm.config"))


@EACH
@pytest.mark.parametrize("where", _TOUCHED, ids=lambda where: f"{where[1]}.{where[2]}")
def test_the_private_names_exist(vllm: Sources, where: tuple[str, str, str]) -> None:
    module, cls, attribute = where
    assert attribute in sources.attributes(vllm.cls(module, cls))


@EACH
@pytest.mark.parametrize(
    ("caller", "owner", "ours", "base"),
    [
        (_SCHEDULER, "manager", ("manager", "RadixShmemManager"), "OffloadingManager"),
        (_WORKER, "worker", ("worker", "RadixShmemWorker"), "OffloadingWorker"),
    ],
    ids=["manager", "worker"],
)
def test_every_call_of_vllm_fits(
    vllm: Sources, caller: tuple[str, str], owner: str, ours: tuple[str, str], base: str
) -> None:
    mine = sources.methods(OURS.cls(*ours))
    theirs = sources.methods(vllm.cls(_BASE, base))
    seen = set()
    for function in sources.methods(vllm.cls(*caller)).values():
        for name, call in sources.calls(function, owner):
            seen.add(name)
            signature = sources.signature(mine.get(name) or theirs[name])
            keywords = {keyword.arg or "" for keyword in call.keywords}
            signature.bind(None, *call.args, **dict.fromkeys(keywords))
    assert len(seen) > 3, "the calls are made otherwise: this test sees none"


@EACH
def test_the_calls_of_a_step_have_a_known_order(vllm: Sources) -> None:
    scheduler = sources.methods(vllm.cls(*_SCHEDULER))
    step = scheduler.get("_build_connector_meta") or scheduler["build_connector_meta"]
    order: list[str] = []
    _expand(scheduler, step, order)
    order = [name for name in order if name.startswith(("prepare_", "on_"))]
    stores = ["prepare_store"] * (len(order) - 2)
    old = ["on_schedule_end", *stores, "on_request_finished"]
    new = [*stores, "on_request_finished", "on_schedule_end"]
    assert stores
    assert order in (old, new)
    assert (order == new) == ("lock" in sources.methods(vllm.cls(_BASE, "OffloadingManager")))


def _expand(
    methods: dict[str, ast.FunctionDef], function: ast.FunctionDef, order: list[str]
) -> None:
    """Calls of the manager, also those made by the methods that are called."""
    for node in sources._in_order(function):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        owner = ast.unparse(node.func.value)
        if owner == "self.manager":
            order.append(node.func.attr)
        elif owner == "self" and node.func.attr in methods:
            _expand(methods, methods[node.func.attr], order)


@pytest.mark.parametrize(
    ("mine", "refused"),
    [
        ("a, b=1", ["self is missing"]),
        ("self, b, a", ["a is not number 1", "b is not number 2"]),
        ("self, a, b", ["b has no default"]),
        ("self, a", ["b is missing"]),
        ("self, a, b=1, *, c", ["c is required, and nobody passes it"]),
        ("self, a, b=1, c=2", []),
        ("self, a, **_", ["b is missing"]),
        ("self, a, *_, **__", []),
    ],
)
def test_a_signature_that_does_not_fit_is_noticed(mine: str, refused: list[str]) -> None:
    theirs = sources.signature(_function("self, a, b=None"))
    found = sources.refusals(sources.signature(_function(mine)), theirs)
    assert set(refused) <= set(found)
    assert bool(refused) == bool(found)


def _function(parameters: str) -> ast.FunctionDef:
    function = ast.parse(f"def f({parameters}): ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    return function
