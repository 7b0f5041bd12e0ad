# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""A reader and two owners for each backend; further processes for tests that stop or kill them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from .nodes import CASES, Case, Node, Start

_count = itertools.count()


@dataclass(frozen=True)
class Trio:
    """A reader that is connected to two owners."""

    reader: Node
    first: Node
    second: Node


FIRST = (1, 101)
SECOND = (2, 102)


@pytest.fixture(scope="module", params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


@pytest.fixture(scope="module")
def trio(case: Case, module_region: str) -> Iterator[Trio]:
    with contextlib.ExitStack() as stack:
        nodes = [Node(f"{module_region}{next(_count)}", case, seed) for seed in (0, 1, 2)]
        for node in nodes:
            stack.callback(node.kill)
        reader, first, second = (node.started() for node in nodes)
        reader.connect(FIRST, first)
        reader.connect(SECOND, second)
        yield Trio(reader, first, second)


@pytest.fixture
def start(case: Case, module_region: str) -> Iterator[Start]:
    """Starts nodes; they are killed at the end of the test."""
    with contextlib.ExitStack() as stack:

        def new(seed: int) -> Node:
            node = Node(f"{module_region}{next(_count)}", case, seed)
            stack.callback(node.kill)
            return node.started()

        yield new
