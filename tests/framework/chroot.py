# SPDX-License-Identifier: Apache-2.0
"""Clean Debian roots to install packages in.

Owns build/chroots/KEY/minimal, a Debian with the packages that ours need downloaded but not
installed, and ready, where they are: a test works on a layer over one, without network. KEY covers
everything that goes in. Needs root and mmdebstrap.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from framework.guest_image import SUITE, run
from framework.host_services import REPOSITORY, HostError
from framework.packages import built_repo, install_command

CACHE = REPOSITORY / "build" / "chroots"
# What kvgpu-host depends on, shells and man to try what it brings, and NVIDIA's library as Debian
# has it.
READY = "python3 python3-libvirt systemd bash-completion fish zsh man-db"
DOWNLOADED = f"{READY} libcuda1"
REPO = "/srv/repo"  # the built one, in the chroot
DOWNLOAD = f"""set -e; export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"; apt-get clean
apt-get install --quiet --yes --no-install-recommends --download-only {DOWNLOADED}
echo force-unsafe-io >"$1/etc/dpkg/dpkg.cfg.d/unsafe-io"
"""
RECIPE: tuple[str, ...] = (
    "mmdebstrap",
    "--variant=minbase",
    "--mode=root",
    "--format=directory",
    "--quiet",
)
RECIPE += ("--components=main,contrib,non-free", "--skip=cleanup/apt/lists,cleanup/apt/cache")
RECIPE += (f"--customize-hook={DOWNLOAD}", SUITE)


class Chroot:
    """A root of its own; commands in it see no network and no processes but their own."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def run(self, command: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a shell command in it; its output and errors are together."""
        enter = 'mount -t proc proc "$0/proc" && exec chroot "$0" /bin/sh -c "$1"'
        isolated = ("--mount", "--propagation=private", "--net", "--pid", "--fork", "--kill-child")
        return subprocess.run(
            ["unshare", *isolated, "sh", "-c", enter, self.root, command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            env={
                "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "HOME": "/root",
                "LC_ALL": "C.UTF-8",
                "DEBIAN_FRONTEND": "noninteractive",
            },
        )

    def check(self, command: str, timeout_s: float = 120) -> str:
        """Run a shell command that must succeed; return what it printed."""
        done = self.run(command, timeout_s)
        assert done.returncode == 0, f"`{command}`: status {done.returncode}\n{done.stdout}"
        return done.stdout

    def install(self, *packages: str) -> str:
        """Install packages by name from the built repository and, as they need, from Debian."""
        self.add_repo(built_repo())
        return self.check(install_command(REPO, *packages), timeout_s=240)

    def add_repo(self, repo: Path) -> str:
        """Copy a repository in and return its folder there."""
        folder = f"/srv/{repo.name}"
        shutil.copytree(repo, self.root / folder[1:], dirs_exist_ok=True)
        return folder

    def paths(self) -> set[str]:
        """List all that is in it, without what apt, dpkg and man keep for themselves."""
        own = ("var/lib/dpkg/", "var/lib/apt/", "var/cache/", "var/log/", "srv/", "tmp/")
        return {
            name
            for folder, folders, files in os.walk(self.root)
            for entry in folders + files
            if not (name := str(Path(folder, entry).relative_to(self.root))).startswith(own)
        }


def _base(ready: bool) -> Path:
    """Return the root below those of tests, made now if it is not there yet."""
    if os.geteuid() != 0:
        raise HostError("chroots need root: run this as root")
    key = hashlib.sha256(" ".join(RECIPE).encode()).hexdigest()[:16]
    folder = CACHE / key
    if not folder.is_dir():
        shutil.rmtree(CACHE, ignore_errors=True)  # of earlier recipes
        making = CACHE / "making"
        making.mkdir(parents=True)
        run(*RECIPE, making / "minimal")
        run("cp", "-a", making / "minimal", making / "ready")
        install = f"apt-get install -y --no-install-recommends {READY}"
        Chroot(making / "ready").check(install, timeout_s=280)
        making.rename(folder)
    return folder / ("ready" if ready else "minimal")


@contextlib.contextmanager
def chroot(ready: bool = False) -> Iterator[Chroot]:
    """Give a new root, in memory over the cached one; at the end nothing of it is left.

    One that is ready has what kvgpu-host depends on, shells and man.
    """
    base = _base(ready)
    with (
        tempfile.TemporaryDirectory(dir=CACHE, prefix="root-") as name,
        contextlib.ExitStack() as s,
    ):
        folder = Path(name)
        run("mount", "-t", "tmpfs", "kvgpu-chroot", folder)
        s.callback(run, "umount", folder)
        upper, work, root = (folder / part for part in ("upper", "work", "root"))
        for part in (upper, work, root):
            part.mkdir()
        layers = f"lowerdir={base},upperdir={upper},workdir={work}"
        run("mount", "-t", "overlay", "-o", layers, "kvgpu-chroot", root)
        s.callback(run, "umount", root)
        yield Chroot(root)


def dependencies(*packages: str) -> list[Path]:
    """Return Debian's packages that these need beyond a minimal system, and themselves."""
    with chroot() as root:
        simulated = root.check(f"apt-get install -s --no-install-recommends {' '.join(packages)}")
    archives = _base(ready=False) / "var" / "cache" / "apt" / "archives"
    names = [line.split()[1] for line in simulated.splitlines() if line.startswith("Inst ")]
    return [next(archives.glob(f"{name}_*.deb")) for name in names]
