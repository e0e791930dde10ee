# SPDX-License-Identifier: Apache-2.0
"""Packages installed by name, used, upgraded, removed and purged in clean roots."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest
from framework.chroot import REPO, Chroot
from framework.host_services import REPOSITORY
from framework.packages import built_repo, install_command, older_repo, use_repo_command

pytestmark = pytest.mark.timeout(900)  # the first one makes the roots

PROGRAM = REPOSITORY / "build" / "release" / "tests" / "programs" / "demo"
HOST_TOML = "/etc/kvgpu/host.toml"
HOOK = "/etc/libvirt/hooks/qemu.d/kvgpu"
MODPROBE = "/etc/modprobe.d/kvgpu.conf"
APPARMOR = "/etc/apparmor.d/local/abstractions/libvirt-qemu"
RULE = "/dev/shm/kvgpu-* rw,\n"
CONFFILES: dict[str, set[str]] = {
    "kvgpu-host": {HOST_TOML, HOOK, MODPROBE},
    "kvgpu-guest": {"/etc/ld.so.conf.d/00-kvgpu-guest.conf"},
    "kvgpu-controller": set(),
}
# A purge leaves the package's users and groups, as is usual: files may still be theirs.
ACCOUNTS = {
    f"etc/{name}{end}" for name in ("passwd", "group", "shadow", "gshadow") for end in ("", "-")
}
ACCOUNTS |= {"etc/.pwd.lock", "etc/ld.so.cache"}


def configuration(root: Chroot) -> dict[str, str]:
    """Return the text of each file below /etc."""
    names = (name for name in root.paths() - ACCOUNTS if name.startswith("etc/"))
    files = {f"/{name}": root.root / name for name in names}
    return {
        name: path.read_text(errors="replace")
        for name, path in files.items()
        if path.is_file() and not path.is_symlink()
    }


def owned_files(root: Chroot, package: str) -> list[Path]:
    """List the package's files as dpkg knows them, as paths outside the root."""
    names = root.check(f"dpkg -L {package}").split()
    return [root.root / name[1:] for name in names if name != "/."]


def conffiles(root: Chroot, package: str) -> set[str]:
    listed = root.check(f"dpkg-query --show --showformat='${{Conffiles}}' {package}").split()
    return {word for word in listed if word.startswith("/")}


@pytest.mark.parametrize("package", CONFFILES)
def test_chroot_install_brings_files_of_root_only(root: Chroot, package: str) -> None:
    root.install(package)
    assert conffiles(root, package) == CONFFILES[package]
    assert root.check(f"dpkg --verify {package}") == ""
    files = owned_files(root, package)
    assert files
    for path in files:
        status = path.lstat()
        assert (status.st_uid, status.st_gid) == (0, 0), path
        assert status.st_mode & (stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX) == 0, path
        assert path.is_symlink() or status.st_mode & 0o022 == 0, path


def test_chroot_host_is_ready_for_use(host: Chroot) -> None:
    """The command works, and says what is missing in a root without libvirtd and kvgpud."""
    assert "CUDA for KVM virtual machines" in host.check("kvgpu --help")
    assert host.check("kvgpud --version").startswith("kvgpud ")
    status = host.run("kvgpu host status")
    assert status.returncode == 1
    assert "kvgpud cannot be reached at /run/kvgpu/kvgpud.sock" in status.stdout
    assert "start kvgpud" in status.stdout
    check = host.run("kvgpu check")
    assert check.returncode == 1
    assert "failed  libvirt: virsh not found" in check.stdout
    assert "apt install libvirt-daemon-system" in check.stdout
    assert "ok      worker: /usr/libexec/kvgpu/kvgpu-worker" in check.stdout
    libvirt = host.run("kvgpu vm list --all")
    assert libvirt.returncode == 1
    assert "Traceback" not in libvirt.stdout + check.stdout + status.stdout
    assert libvirt.stdout.startswith("kvgpu: ")
    host.check("getent group kvgpu-worker kvgpu")
    assert "options nvidia_uvm uvm_disable_hmm=1" in host.check(f"cat {MODPROBE}")
    assert host.check(f"cat {APPARMOR}").count(RULE) == 1
    assert "KillMode=process" in host.check("cat /lib/systemd/system/kvgpud.service")


def test_chroot_host_computes(host: Chroot) -> None:
    shutil.copy2(PROGRAM, host.root / "tmp" / "demo")
    output = host.check("cd /tmp && kvgpu run --driver software --no-jail -- ./demo")
    assert "demo: all results correct" in output


def test_chroot_hook_refuses_ours_and_lets_others_start(root: Chroot) -> None:
    root.install("kvgpu-host")
    ours = "echo '<domain xmlns:k=\"https://kvgpu.org/xmlns/vm/1\"/>'"
    prepare = f"{HOOK} alice prepare begin -"
    refused = root.run(f"{ours} | {prepare}")
    assert refused.returncode == 1
    assert "alice: prepare: kvgpud cannot be reached" in refused.stdout
    root.check(f"echo '<domain/>' | {prepare}")
    root.check("apt-get remove -y kvgpu-host && apt-get autoremove -y")
    assert root.run("test -e /usr/bin/python3").returncode == 1
    root.check(f"{ours} | {prepare}")  # what is left of the hook hinders nobody


@pytest.mark.parametrize("package", CONFFILES)
def test_chroot_upgrade_keeps_what_the_administrator_wrote(ready: Chroot, package: str) -> None:
    older = ready.add_repo(older_repo(built_repo()))
    ready.check(install_command(older, package))
    version = f"dpkg-query --show --showformat='${{Version}}' {package}"
    assert ready.check(version) == "0.0.9"
    for name in CONFFILES[package]:
        ready.check(f"echo '# mine' >>{name}")
    before = ready.paths()
    upgrade = ready.install(package)
    assert "1 upgraded" in upgrade
    assert ready.check(version) != "0.0.9"
    for name in CONFFILES[package]:
        assert ready.check(f"tail -n 1 {name}") == "# mine\n"
    assert ready.paths() == before
    if package == "kvgpu-host":
        assert "restart libvirtd" not in upgrade
        assert ready.check(f"cat {APPARMOR}").count(RULE) == 1
    ready.check(f"apt-get install -y --reinstall {package}")
    assert ready.paths() == before


@pytest.mark.parametrize("package", CONFFILES)
def test_chroot_remove_keeps_conffiles_and_purge_leaves_nothing(
    ready: Chroot, package: str
) -> None:
    ready.add_repo(built_repo())
    ready.check(use_repo_command(REPO))
    ready.check(f"mkdir -p {Path(APPARMOR).parent} && echo '/mine r,' >{APPARMOR}")
    paths, texts = ready.paths(), configuration(ready)
    ready.install(package)
    ready.check("[ ! -d /run/kvgpu ] || mkdir /run/kvgpu/log")
    ready.check(f"apt-get remove -y {package}")
    assert set(configuration(ready)) - set(texts) == CONFFILES[package]
    assert configuration(ready)[APPARMOR] == "/mine r,\n"
    ready.check(f"apt-get purge -y {package}")
    assert configuration(ready) == texts
    assert ready.paths() - paths <= ACCOUNTS
    assert paths - ready.paths() == set()
