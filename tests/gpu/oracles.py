# SPDX-License-Identifier: Apache-2.0
"""Every form of ptx_ops.toml on a real GPU, beside the oracle that the software GPU is held to.

Prints one line per form that NVIDIA's driver refuses or in which some result differs.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("KVGPU_SOFTWARE_GPU", "libcuda.so.1")

from software_gpu.bench import Bench, edges
from software_gpu.gpu import CudaError, gpu
from software_gpu.rows import Form, rows

N_PROCESSES = 8


def compare(forms: list[Form]) -> list[str]:
    bench = Bench(forms)
    values = {t: edges(t) for t in bench.types}
    lines = []
    for index, form in enumerate(forms):
        wrong = [text for seed in range(2) for text in bench.wrong(index, values, seed)]
        if wrong:
            lines.append(f"DIFFERS {form.text}: {len(wrong)} results, such as {wrong[0]}")
    bench.close()
    return lines


def examine(forms: list[Form]) -> list[str]:
    """The findings in these forms; of a module that is refused or fails, in each half of it."""
    try:
        return compare(forms)
    except CudaError as error:
        gpu().call("cuDevicePrimaryCtxReset_v2", 0)
        gpu.cache_clear()
        if len(forms) > 1:
            half = len(forms) // 2
            return examine(forms[:half]) + examine(forms[half:])
        what = "REFUSED" if error.log else "FAILED"
        log = " ".join(error.log.split())
        return [f"{what} {forms[0].text} {' '.join(forms[0].operands)}: {error.code} {log}"]


def main() -> int:
    wanted = [row.forms() for row in rows() if row.operands]
    n_forms = sum(map(len, wanted))
    with ProcessPoolExecutor(N_PROCESSES) as pool:
        found = [line for lines in pool.map(examine, wanted) for line in lines]
    print(*found, sep="\n")
    print(f"figure: {n_forms} forms of PTX, of which unlike their oracle or refused: {len(found)}")
    return 1 if found or n_forms == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
