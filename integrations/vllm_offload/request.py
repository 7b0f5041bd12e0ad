# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What the manager knows of one request."""

from __future__ import annotations

from dataclasses import dataclass, field

from .path import RequestPath
from .pulls import Pull
from .quarantine import Found

__all__ = ["RequestState"]


@dataclass(slots=True)
class RequestState:
    """From its announcement until it has ended and no load of it is in flight."""

    path: RequestPath
    limit: int | None = None  # blocks that a lookup may reach; None: all
    found: Found | None = None  # of this round, pinned
    hits: dict[bytes, int] = field(default_factory=dict)  # slots of what it found, by key
    pull: Pull | None = None  # runs in the background
    pulled: bool = False  # or did: there is one for each request
    loads: int = 0  # jobs in flight
    done: bool = False
    banned: bool = False  # a load of it failed: it computes the rest itself

    def release(self) -> None:
        self.hits = {}
        if self.found is not None:
            self.found.finalize()
            self.found = None

    def give_up_pull(self) -> None:
        if self.pull is not None:
            self.pull.cancel()
            self.pull = None
