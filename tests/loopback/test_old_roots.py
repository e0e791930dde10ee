# SPDX-License-Identifier: Apache-2.0
"""What guests install, loaded by the libc of old distributions: the oldest that Debian serves.

A root holds libc and what it needs, nothing else; it is fetched once, into build/old-roots.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from framework.loopback import BUILD, PROGRAMS, ROOT, Loopback

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a chroot needs root")

CACHE = ROOT / "build/old-roots"
# /mnt/* of the root, in a mount namespace that ends with the program.
ENTER = """set -e
root=$1 libcuda=$2 agent=$3 programs=$4 sockets=$(dirname "$KVGPU_SOCKET"); shift 4
for name in libcuda agent programs sockets; do
  mkdir -p "$root/mnt/$name"; mount --bind "${!name}" "$root/mnt/$name"
done
mkdir -p "$root/proc"; mount --rbind /proc "$root/proc"
export KVGPU_SOCKET=/mnt/sockets/${KVGPU_SOCKET##*/} LD_LIBRARY_PATH=/mnt/libcuda
exec chroot "$root" "$@"
"""


@dataclass(frozen=True, slots=True)
class OldRoot:
    suite: str
    glibc: str


ROOTS = [OldRoot("bullseye", "2.31")]  # Debian 11


@pytest.fixture(params=ROOTS, ids=lambda root: root.suite)
def root(request: pytest.FixtureRequest) -> Path:
    """The folder of an old distribution's libc; its version is what the name promises."""
    old: OldRoot = request.param
    path = CACHE / old.suite
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE, ignore_cleanup_errors=True) as folder:
            new = Path(folder, "root")
            fetch = [
                *("mmdebstrap", "--variant=extract", "--mode=root", "--format=directory"),
                *("--quiet", "--include=libc6", old.suite, str(new)),
            ]
            subprocess.run(fetch, check=True, timeout=240)
            new.rename(path)
    assert (path / f"lib/x86_64-linux-gnu/libc-{old.glibc}.so").exists()
    return path


def enter(root: Path, *command: str) -> list[str]:
    """Return the command that runs `command` in the root."""
    folders = [root, BUILD / "guest/libcuda", BUILD / "guest/agent", PROGRAMS]
    script = ["unshare", "--mount", "--propagation", "private", "bash", "-c", ENTER, "enter"]
    return [*script, *(str(folder) for folder in folders), *command]


def test_program_in_an_old_root_computes(host: Loopback, root: Path) -> None:
    output = host.check(*enter(root, "/mnt/programs/vector_add"))
    assert output.splitlines()[-1] == "vector_add: all results correct"


def test_agent_in_an_old_root_starts(host: Loopback, root: Path) -> None:
    done = host.run(*enter(root, "/mnt/agent/kvgpu-agentd", "--no-such-option"))
    assert "usage: kvgpu-agentd" in done.stderr, done.stderr
