# SPDX-License-Identifier: Apache-2.0
"""Faults on a real GPU: natively and through kvgpu beside a neighbour that computes and checks.

python tests/gpu/faults.py [DRIVER]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from framework.faults import NAMES, check_fault, check_infinite, neighbour
from framework.loopback import loopback

NEIGHBOUR_S = 90


def main() -> int:
    driver = sys.argv[1] if len(sys.argv) > 1 else "nvidia"
    failed = False
    # No jail: the machine may be a container that cannot make one.
    with loopback(driver=driver, jail=False) as host, neighbour(host, NEIGHBOUR_S):
        for name in NAMES:
            differing = check_fault(host, driver, name)
            failed = failed or bool(differing)
            print(f"{'FAILED' if differing else 'same  '}  {name}", flush=True)
            for line in differing:
                print(f"    natively {line}")
        check_infinite(host)
        print("ok      infinite kernel: ended with its program, the next process works", flush=True)
    print(
        f"figure: {len(NAMES) + 1} faults, native and remoted the same: {'no' if failed else 'yes'}"
    )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
