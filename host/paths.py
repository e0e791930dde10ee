# SPDX-License-Identifier: Apache-2.0
"""Where the native parts are: as an environment variable says, else in a build folder of the source
tree, else where the packages put them."""

from __future__ import annotations

import os
from pathlib import Path

from kvgpu.host.errors import ConfigError

RUNTIME_DIR = Path("/run/kvgpu")
API_GROUP = "kvgpu"  # may use the socket there without being root
CONFIG_FILE = Path("/etc/kvgpu/host.toml")
LIBEXEC_DIR = Path("/usr/libexec/kvgpu")
PCI_DEVICES = Path("/sys/bus/pci/devices")
HOOK_FILE = Path("/etc/libvirt/hooks/qemu.d/kvgpu")
_PRESETS = ("release", "dev", "asan", "tsan")


def source_root() -> Path | None:
    """Return the root of the source tree this file lies in, None if it is installed."""
    root = Path(__file__).resolve().parents[1]
    return root if (root / "CMakePresets.json").is_file() else None


def find_worker() -> Path:
    return _find("kvgpu-worker", "KVGPU_WORKER", "host/worker/kvgpu-worker", LIBEXEC_DIR)


def find_agent() -> Path:
    return _find(
        "kvgpu-agentd (package kvgpu-guest)",
        *("KVGPU_AGENTD", "guest/agent/kvgpu-agentd", LIBEXEC_DIR),
    )


def find_software_gpu() -> Path:
    return _find(
        "the software GPU",
        "KVGPU_SOFTWARE_GPU",
        "host/software_gpu/libcuda.so.1",
        LIBEXEC_DIR / "software_gpu",
    )


def find_libcuda_dir() -> Path:
    """Return the folder of the libcuda.so.1 that programs under `kvgpu run` load."""
    return _find(
        "kvgpu's libcuda.so.1",
        "KVGPU_LIBCUDA_DIR",
        "guest/libcuda/libcuda.so.1",
        LIBEXEC_DIR / "libcuda",
        Path("/usr/lib/x86_64-linux-gnu/kvgpu"),
        Path("/usr/lib/kvgpu"),
    ).parent


def _find(what: str, variable: str, in_build: str, *installed_dirs: Path) -> Path:
    """Return the first file that exists; `variable` may hold the file or its folder."""
    name = Path(in_build).name
    told = os.environ.get(variable)
    if told:
        candidates = [Path(told), Path(told) / name]
    else:
        root = source_root()
        builds = [root / "build" / preset / in_build for preset in _PRESETS] if root else []
        candidates = builds + [folder / name for folder in installed_dirs]
    for path in candidates:
        if path.is_file():
            return path.absolute()
    raise ConfigError(
        f"{what} not found: looked for {', '.join(map(str, candidates))}",
        hint=f"run `make build`, install the package kvgpu-host, or set {variable}",
    )
