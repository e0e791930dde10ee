# SPDX-License-Identifier: Apache-2.0
"""python3 -m benchmarks.workloads [--effort SHARE] [--served] NAME: figures of one workload.

--served: its models are made at the first line on standard input (`warm`); each further line (`go`)
is answered with figures and `end`.
"""

import argparse
import sys
from collections.abc import Callable
from importlib import import_module

from benchmarks.workloads.protocol import Figures, Workload

WORKLOADS = {
    "small": ("small", "Small"),
    "decode": ("decode", "Decode"),
    "compiled": ("decode", "Compiled"),
    "resnet": ("vision", "ResNet"),
    "inception": ("vision", "Inception"),
}


def load(name: str) -> Callable[[], Workload]:
    """Import what this workload needs; what is returned makes it."""
    module, kind = WORKLOADS[name]
    maker: Callable[[], Workload] = getattr(import_module(f"benchmarks.workloads.{module}"), kind)
    return maker


def import_and_matmul() -> None:
    """A process as short as one gets."""
    import torch

    a = torch.ones(256, 256, device="cuda")
    print("matmul", float((a @ a)[0, 0]), "sum", flush=True)


def say(figures: Figures) -> None:
    for name, (value, unit) in figures.items():
        print(f"{name} {value:.6g} {unit}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--effort", type=float, default=1.0)
    parser.add_argument("--served", action="store_true")
    parser.add_argument("name", choices=[*WORKLOADS, "import"])
    options = parser.parse_args()
    if options.name == "import":
        import_and_matmul()
        return
    make = load(options.name)
    if not options.served:
        say(make().measure(options.effort))
        return
    workload = None
    for _ in sys.stdin:
        if workload is None:
            workload = make()
        else:
            say(workload.measure(options.effort))
        print("end", flush=True)


if __name__ == "__main__":
    main()
