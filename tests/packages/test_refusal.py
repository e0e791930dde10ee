# SPDX-License-Identifier: Apache-2.0
"""kvgpu-guest and NVIDIA's driver keep away from each other, whoever came first."""

from __future__ import annotations

from pathlib import Path

import pytest
from framework.chroot import REPO, Chroot
from framework.packages import built_repo, install_command, use_repo_command

pytestmark = pytest.mark.timeout(900)  # the first one makes the roots

NVIDIA = "apt-get install -y --no-install-recommends libcuda1"  # Debian's package of it
INSTALLED = "dpkg-query --show --showformat='${db:Status-Status}'"
GUEST_DEB = f"{REPO}/pool/main/k/kvgpu/kvgpu-guest_*.deb"


@pytest.fixture
def guest(root: Chroot) -> Chroot:
    """A root that knows the repository, with nothing of it installed."""
    root.add_repo(built_repo())
    root.check(use_repo_command(REPO))
    return root


def test_chroot_refuses_beside_nvidias_packages(guest: Chroot) -> None:
    guest.check(NVIDIA, timeout_s=240)
    refused = guest.run(f"dpkg --install {GUEST_DEB}")
    assert refused.returncode != 0
    assert "kvgpu-guest conflicts with libcuda" in refused.stdout
    assert "conflicting packages - not installing kvgpu-guest" in refused.stdout
    both = guest.run("apt-get install -y kvgpu-guest libcuda1")
    assert both.returncode != 0
    assert "kvgpu-guest : Conflicts: libcuda" in both.stdout
    alone = guest.check("apt-get install --simulate kvgpu-guest")  # apt says what it would do
    assert "libcuda1" in alone.partition("will be REMOVED:")[2].partition("NEW packages")[0]
    assert guest.run(f"{INSTALLED} kvgpu-guest").stdout != "installed"
    assert guest.check(f"{INSTALLED} libcuda1") == "installed"


def test_chroot_keeps_nvidias_packages_out(guest: Chroot) -> None:
    guest.install("kvgpu-guest")
    guest.check("apt-get install -y nvidia-legacy-check")  # what libcuda1 wants to be there before
    refused = guest.run("dpkg --install /var/cache/apt/archives/libcuda1_*.deb")
    assert refused.returncode != 0
    assert "kvgpu-guest conflicts with libcuda" in refused.stdout
    assert "conflicting packages - not installing libcuda1" in refused.stdout
    assert guest.check(f"{INSTALLED} kvgpu-guest") == "installed"


def test_chroot_refuses_a_library_that_no_package_brought(guest: Chroot) -> None:
    library = "/lib/x86_64-linux-gnu/libcuda.so.1"
    # Stands in for the one that NVIDIA's installer brings: our own, where that would put it.
    guest.check(
        f"dpkg --fsys-tarfile {GUEST_DEB} | tar -xO ./usr/lib/x86_64-linux-gnu/kvgpu/"
        f"libcuda.so.1 >{library} && ldconfig"
    )
    refused = guest.run(install_command(REPO, "kvgpu-guest"))
    assert refused.returncode != 0
    assert f"kvgpu-guest: there is another CUDA driver library, {library}" in refused.stdout
    assert "nvidia-uninstall" in refused.stdout
    assert guest.run(f"{INSTALLED} kvgpu-guest").stdout != "installed"
    (guest.root / library[1:]).unlink()
    guest.check("ldconfig")
    guest.install("kvgpu-guest")


def test_chroot_refuses_where_nvidias_module_is_loaded(guest: Chroot) -> None:
    # What the kernel module shows, on a file system that lies over that part of /proc.
    loaded = "mount -t tmpfs none /proc/driver && mkdir /proc/driver/nvidia"
    loaded += " && echo 'NVRM version: NVIDIA UNIX' >/proc/driver/nvidia/version"
    refused = guest.run(f"{loaded} && {install_command(REPO, 'kvgpu-guest')}")
    assert refused.returncode != 0
    assert "kvgpu-guest: NVIDIA's kernel module is loaded" in refused.stdout
    assert guest.run(f"{INSTALLED} kvgpu-guest").stdout != "installed"


def test_chroot_guest_finds_its_library_and_says_that_the_device_is_missing(guest: Chroot) -> None:
    guest.install("kvgpu-guest")
    found = guest.check("ldconfig -p | grep -F 'libcuda.so.1 '")
    assert "=> /usr/lib/x86_64-linux-gnu/kvgpu/libcuda.so.1" in found
    found = guest.check("ldconfig -p | grep -F 'libnvidia-ml.so.1 '")
    assert "=> /usr/lib/x86_64-linux-gnu/kvgpu/libnvidia-ml.so.1" in found
    smi = guest.run("kvgpu-smi")
    assert smi.returncode == 1
    assert "systemctl start kvgpu-agentd" in smi.stdout
    check = guest.run("kvgpu-check")
    assert check.returncode == 1
    assert "1af4:1110" in check.stdout
    assert "Traceback" not in check.stdout
    guest.check("getent group kvgpu")
    assert Path(guest.root, "lib/systemd/system/kvgpu-guest.service").is_file()
