# SPDX-License-Identifier: Apache-2.0
"""No vacuous success: what is served either crosses to the worker or is answered in the guest."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from framework.loopback import BUILD, loopback

from kvgpu.protocol.generator.model import Model

CALLER = Path(__file__).with_name("every_row.py")
LIMIT_S = 280
# What the null worker answers names nothing that the program knows.
UNKNOWN = {
    *("cuGraphKernelNodeGetParams", "cuGraphKernelNodeGetParams_v2", "cuGraphHostNodeGetParams"),
    *("cuGraphMemAllocNodeGetParams", "cuGraphBatchMemOpNodeGetParams"),
    *("cuTexRefGetArray", "cuTexRefGetMipmappedArray", "cuSurfRefGetArray"),
}
# Answered from what another row has asked for earlier.
CACHED = {
    "cuDeviceGetMemPool": "cuDeviceGetDefaultMemPool",
    "cuMemGetDefaultMemPool": "cuDeviceGetDefaultMemPool",
    "cuMemGetMemPool": "cuDeviceGetDefaultMemPool",
}


@pytest.fixture(scope="module")
def seen(
    model: Model, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, tuple[int, int]]]:
    """What each served row answered against the null worker, and how many records it made."""
    log = tmp_path_factory.mktemp("null") / "records"
    log.touch()
    asked = {
        row.name: {"class": row.cls, "params": [[p.name, p.type] for p in row.function.params]}
        for row in model.rows
    }
    addresses = [
        str(row.opcode)
        for row in model.rows
        if row.opcode and any(p.type == "CUdeviceptr *" for p in row.function.params)
    ]
    null_worker = {"KVGPU_WORKER": str(BUILD / "tests/loopback/null_worker")}
    null_worker |= {"NULL_WORKER_LOG": str(log), "NULL_WORKER_ADDRESSES": ",".join(addresses)}
    with loopback(jail=False, **null_worker) as host:
        done = subprocess.run(
            host.command(sys.executable, CALLER),
            env=host.environment,
            cwd=log.parent,  # some calls write files
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{done.stderr[-2000:]}\n{host.logs()}"
        yield json.loads(done.stdout)


def test_every_served_row_is_called(model: Model, seen: dict[str, tuple[int, int]]) -> None:
    assert set(seen) == {row.name for row in model.rows}


def test_what_is_not_local_reaches_the_worker(
    model: Model, seen: dict[str, tuple[int, int]]
) -> None:
    """Whoever adds a row and sees its name here: give it arguments in every_row.py."""
    crossing = [row.name for row in model.rows if row.cls != "local"]
    assert len(crossing) > 70
    silent = {name: seen[name] for name in crossing if seen[CACHED.get(name, name)][1] == 0}
    assert silent == {}
    # The null worker is content with everything; a query may come before the number does.
    failed = {name: seen[name][0] for name in crossing if seen[name][0] != 0}
    failed = {n: c for n, c in failed.items() if (c, n.endswith("Query")) != (600, True)}
    assert {n: c for n, c in failed.items() if (c, n in UNKNOWN) != (1, True)} == {}


def test_served_rows_do_not_refuse(model: Model, seen: dict[str, tuple[int, int]]) -> None:
    """A row that only ever answers CUDA_ERROR_NOT_SUPPORTED belongs to [refused]."""
    refusing = [name for name, (code, _) in seen.items() if code == 801]
    assert refusing == []
