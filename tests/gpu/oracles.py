# SPDX-License-Identifier: Apache-2.0
"""Every form of ptx_ops.toml on a real GPU, beside the oracle that the software GPU is held to.

Prints one line per form that NVIDIA's driver refuses or in which some result differs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, count, repeat
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("KVGPU_SOFTWARE_GPU", "libcuda.so.1")

from software_gpu.bench import Bench, edges
from software_gpu.gpu import CudaError, gpu
from software_gpu.kernels import BOXED
from software_gpu.rows import Form, rows

N_PROCESSES = 12
LIMIT_S = 400


def can_be_compared(form: Form) -> bool:
    """Not what the test's kernel does to memory that the form may not be used on.

    .nc is for what no thread writes, and NVIDIA's JIT crashes on a .param variable that is in no
    call. Compilers emit neither.
    """
    return not form.has("nc") and not any(form.has(space) for space in BOXED)


def compare(forms: list[Form]) -> list[str]:
    forms = [form for form in forms if can_be_compared(form)]
    if not forms:
        return []
    bench = Bench(forms, is_gpu=True)
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


def in_a_process(row: int, begin: int, end: int) -> list[str]:
    """The findings in these forms of a row, by a process of its own: NVIDIA's driver may crash."""
    command = [sys.executable, "-P", __file__, str(row), str(begin), str(end)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    if done.returncode == 0:
        return done.stdout.splitlines()
    if end - begin > 1:
        middle = (begin + end) // 2
        return in_a_process(row, begin, middle) + in_a_process(row, middle, end)
    form = rows()[row].forms()[begin]
    return [f"CRASHED {form.text} {' '.join(form.operands)}: {done.stderr[-500:]!r}"]


def main() -> int:
    if len(sys.argv) == 4:
        row, begin, end = map(int, sys.argv[1:])
        for line in examine(rows()[row].forms()[begin:end]):
            print(line)
        return 0
    sizes = [len(row.forms()) if row.operands else 0 for row in rows()]
    n_compared = sum(can_be_compared(f) for row in rows() if row.operands for f in row.forms())
    with ThreadPoolExecutor(N_PROCESSES) as pool:
        found = list(chain.from_iterable(pool.map(in_a_process, count(), repeat(0), sizes)))
    print(*found, sep="\n")
    print(
        f"figure: {n_compared} of {sum(sizes)} forms of PTX compared on the GPU, unlike their "
        f"oracle or refused: {len(found)}"
    )
    return 1 if found or n_compared == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
