# SPDX-License-Identifier: Apache-2.0
"""Build this folder's programs where they run: nvcc, libraries of PyTorch's wheels or a toolkit.

python3 build.py OUT: prints the libraries' folders, separated by colons, for LD_LIBRARY_PATH.
Environment: NVCC, NVCCFLAGS, CUDA_ARCH (default: of the GPU that is here).
"""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
LIBRARIES = {
    "thrust_cub": (),
    "cublas": ("libcublas.so", "libcublasLt.so"),
    "cudnn": ("libcudnn.so",),
    "cufft": ("libcufft.so",),
    "curand": ("libcurand.so",),
    "cusolver": ("libcusolver.so",),
    "cusparse": ("libcusparse.so",),
}


def roots() -> list[Path]:
    """Folders with include/ and lib/: the wheels' first, since their versions fit each other."""
    found = []
    # Not those of $PYTHONPATH, which may hold a few of these wheels for kvgpu itself.
    for place in site.getsitepackages():
        found += sorted(path.parent for path in Path(place).glob("nvidia/*/include"))
    if nvcc := shutil.which("nvcc"):
        found.append(Path(nvcc).resolve().parents[1])
    return found


def folders(name: str) -> list[Path]:
    return [path / name for path in roots() if (path / name).is_dir()]


def library_folders() -> list[Path]:
    return [*folders("lib"), *folders("lib64")]


def find(library: str) -> Path:
    """The file of a library; wheels have it with its version only."""
    for folder in library_folders():
        for path in sorted(folder.glob(f"{library}*")):
            return path
    raise SystemExit(f"libraries: {library} is in none of {[str(r) for r in roots()]}")


def build(name: str, out: Path) -> None:
    nvcc = os.environ.get("NVCC") or shutil.which("nvcc")
    if not nvcc:
        raise SystemExit("libraries: no nvcc in $PATH; set NVCC")
    files = [str(find(library)) for library in LIBRARIES[name]]
    command = [nvcc, "-std=c++17", "-O1", f"-arch={os.environ.get('CUDA_ARCH', 'native')}"]
    command += [f"-I{folder}" for folder in folders("include")]
    command += [f"-L{folder}" for folder in library_folders()]
    # What a library needs itself is found when the program starts.
    for option in (*files, "--allow-shlib-undefined"):
        command += ["-Xlinker", option]
    command += ["-o", str(out / name), str(HERE / f"{name}.cu")]
    subprocess.run([*command, *os.environ.get("NVCCFLAGS", "").split()], check=True)


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for name in LIBRARIES:
        build(name, out)
    print(":".join(map(str, library_folders())))


if __name__ == "__main__":
    main()
