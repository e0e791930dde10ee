# SPDX-License-Identifier: Apache-2.0
"""The packages as users get them: by name, from the signed apt repository that `make repo` made."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from framework.host_services import REPOSITORY, HostError

# Built for tests/loopback/test_versions.py.
OLDER_LIBRARY = REPOSITORY / "build" / "release" / "guest" / "libcuda" / "older" / "libcuda.so.1"


def built_repo() -> Path:
    """Return the repository; raise HostError if there is none."""
    repo = REPOSITORY / "dist" / "repo"
    if not (repo / "kvgpu.sources").is_file():
        raise HostError(f"no repository {repo}: run `make repo`")
    return repo


def use_repo_command(repo: str) -> str:
    """Return a shell command that makes the repository, which lies in that folder, known to apt.

    Other sources are left as they are, and not asked: there may be no network.
    """
    ours = "sources.list.d/kvgpu.sources"
    only = f"-o Dir::Etc::sourcelist={ours} -o Dir::Etc::sourceparts=- -o APT::Get::List-Cleanup=0"
    return (
        f"install -D -m 644 {repo}/kvgpu.asc /etc/apt/keyrings/kvgpu.asc && "
        f"sed 's|^URIs:.*|URIs: file:{repo}|' {repo}/kvgpu.sources >/etc/apt/{ours} && "
        f"apt-get update -q {only}"
    )


def install_command(repo: str, *packages: str) -> str:
    """Return a shell command that installs packages by name from the repository in that folder."""
    names = " ".join(packages)
    install = "DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends"
    # Written out: some tests pull the VM's plug.
    return f"({use_repo_command(repo)} && {install} {names} && sync) 2>&1"


def older_repo(repo: Path) -> Path:
    """Return a repository with the packages as version 0.0.9: the guest's has the library of the
    minor version of the protocol before this one."""
    older = REPOSITORY / "build" / "older-repo"
    with tempfile.TemporaryDirectory() as name:
        packages = [_as_older(deb, Path(name)) for deb in sorted(repo.glob("pool/*/*/*/*.deb"))]
        command: list[Path] = [REPOSITORY / "packaging" / "repo.sh", older, *packages]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return older


def _as_older(deb: Path, folder: Path) -> Path:
    tree = folder / deb.stem
    subprocess.run(["dpkg-deb", "--raw-extract", deb, tree], check=True)
    for library in tree.glob("usr/lib/*/kvgpu/libcuda.so.1"):
        shutil.copyfile(OLDER_LIBRARY, library)
    control = tree / "DEBIAN" / "control"
    version = next(line for line in control.read_text().splitlines() if line.startswith("Version:"))
    control.write_text(control.read_text().replace(version, "Version: 0.0.9"))
    build: list[str | Path] = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, folder]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    return next(folder.glob(f"{deb.name.split('_')[0]}_0.0.9_*.deb"))
