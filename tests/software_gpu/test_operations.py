# SPDX-License-Identifier: Apache-2.0
"""Every form of ptx_ops.toml that computes something, on arrays of operands, against its oracle."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from software_gpu.bench import Bench, bits_of, edges
from software_gpu.rows import Row, rows

COMPUTING = [row for row in rows() if row.operands]


@pytest.mark.parametrize("row", COMPUTING, ids=lambda row: row.name)
def test_results_are_those_of_the_oracle(row: Row) -> None:
    bench = Bench(row.forms())

    def check(values: dict[str, list[int]], seed: int) -> None:
        for index in range(len(bench.forms)):
            for wrong in bench.wrong(index, values, seed):
                pytest.fail(wrong)

    some = {
        t: st.lists(
            st.sampled_from(edges(t)) | st.integers(0, (1 << bits_of(t)) - 1),
            min_size=8,
            max_size=16,
        )
        for t in bench.types
    }

    @settings(max_examples=3, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(values=st.fixed_dictionaries(some), seed=st.integers(0, 2**32))
    def on_any(values: dict[str, list[int]], seed: int) -> None:
        check(values, seed)

    try:
        check({t: edges(t) for t in bench.types}, 0)
        on_any()
    finally:
        bench.close()
