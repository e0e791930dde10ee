# SPDX-License-Identifier: Apache-2.0
"""What one run of a workload computed and how long it took."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Record:
    """Filled by a workload, written as JSON, compared with other runs of it."""

    same: dict[str, Any] = field(default_factory=dict)
    near: dict[str, tuple[list[float], float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def equal(self, name: str, value: Any) -> None:
        """A value that is the same in every run: JSON's types."""
        assert name not in self.same, f"{name} is there already"
        self.same[name] = value

    def digest(self, name: str, array: Any) -> None:
        """All bytes of an array (NumPy's, or what has .tobytes()), as a hash."""
        self.equal(name, hashlib.sha256(array.tobytes()).hexdigest()[:16])

    def close(self, name: str, values: Sequence[float], relative: float) -> None:
        """Numbers that may differ between runs: by `relative`, or as much as two native runs do."""
        assert name not in self.near, f"{name} is there already"
        self.near[name] = ([float(value) for value in values], relative)

    def took(self, name: str, seconds: float) -> None:
        self.seconds[name] = seconds

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """The time of the body, which must wait for the GPU before it ends."""
        begun_s = time.perf_counter()
        yield
        self.took(name, time.perf_counter() - begun_s)

    def median_of(self, name: str, body: Callable[[], Any], n: int = 5) -> None:
        """The median time of `n` runs of `body`, which waits for the GPU, after one to warm up."""
        body()
        times_s = []
        for _ in range(n):
            begun_s = time.perf_counter()
            body()
            times_s.append(time.perf_counter() - begun_s)
        self.took(name, statistics.median(times_s))
