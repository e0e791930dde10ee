# SPDX-License-Identifier: Apache-2.0
"""What reaches the driver beside static cudart 13: shared runtimes, an embedded one, cuda-python.

`python -P tests/framework/runtimes.py --driver nvidia` prints one line per program, for
tests/gpu/run.sh: its name, then its command, separated by tabs.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("KVGPU_TEST_BUILD", "build/release") / "tests/loopback"
NVRTC = "libnvrtc.so.13"
TOOLKITS = ("/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/*/lib", "/usr/lib/*")


def wheels() -> Path:
    """Return the folder of NVIDIA's wheels."""
    found = importlib.util.find_spec("nvidia")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("runtimes: none of NVIDIA's wheels: run `make setup` (or `make wheels`)")
    return Path(next(iter(found.submodule_search_locations)))


def nvrtc() -> Path:
    """Return NVRTC: the wheel's, or that of a toolkit of this machine."""
    places = [wheels() / "cu13/lib"]
    for pattern in TOOLKITS:
        places += sorted(Path("/").glob(pattern.lstrip("/")), reverse=True)
    for place in places:
        if (place / NVRTC).exists():
            return place / NVRTC
    raise SystemExit(f"runtimes: no {NVRTC} in {', '.join(map(str, places))}")


def environment() -> dict[str, str]:
    """Return the variables that NVRTC wants: it looks for a library of its own by name."""
    return {"LD_LIBRARY_PATH": str(nvrtc().parent)}


def programs(driver: str) -> Mapping[str, list[str]]:
    """Return the commands by name; `driver` is "software" or "nvidia"."""
    site = wheels()

    def with_cudart(path: str) -> list[str]:
        return [str(BUILD / "runtime_program"), str(site / path), str(nvrtc())]

    jpeg = [str(site / "nvjpeg/lib/libnvjpeg.so.12"), str(ROOT / "tests/data/gradient.jpg")]
    # Its kernels are machine code of real GPUs, and PTX for the newest alone.
    only_start = ["--no-decode"] if driver == "software" else []
    runtimes = [
        str(site / "cu13/lib/libcudart.so.13"),
        str(site / "cuda_runtime/lib/libcudart.so.12"),
    ]
    return {
        "cudart-13-and-12": [
            *(sys.executable, "-P", str(ROOT / "tests/loopback/runtimes/two_runtimes.py")),
            *runtimes,
        ],
        "cudart-13-shared": with_cudart("cu13/lib/libcudart.so.13"),
        "cudart-12-shared": with_cudart("cuda_runtime/lib/libcudart.so.12"),
        "cudart-11.8": with_cudart("cuda_runtime/lib/libcudart.so.11.0"),
        "cudart-12-static": [str(BUILD / "nvjpeg_program"), *jpeg, *only_start],
        "cuda-python": [
            *(sys.executable, "-P"),
            str(ROOT / "tests/loopback/runtimes/cuda_python.py"),
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--driver", choices=["software", "nvidia"], required=True)
    driver = parser.parse_args().driver
    print("LD_LIBRARY_PATH", environment()["LD_LIBRARY_PATH"], sep="\t")
    for name, command in programs(driver).items():
        print(name, *command, sep="\t")


if __name__ == "__main__":
    main()
