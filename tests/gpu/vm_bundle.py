# SPDX-License-Identifier: Apache-2.0
"""Make build/gpu-vm: a virtual machine to carry to a GPU machine that has neither QEMU nor network.

Holds QEMU with its libraries, the guest image's kernel, and a Debian (dpkg, libc) as initial RAM
disk with the kvgpu-guest package and the test programs. vm.py runs it there.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from framework.guest_image import SUITE, guest_image, run  # noqa: E402

BUNDLE = ROOT / "build/gpu-vm"
QEMU = Path("/usr/bin/qemu-system-x86_64")
TCG_MODULE = Path("/usr/lib/x86_64-linux-gnu/qemu/accel-tcg-x86_64.so")
FIRMWARE = (
    "/usr/share/seabios/bios-256k.bin",
    "/usr/share/qemu/kvmvapic.bin",
    "/usr/share/qemu/linuxboot_dma.bin",
    "/usr/share/qemu/pvh.bin",
)
PROGRAMS = ROOT / "build/release/tests/programs"
# Measured natively; under emulation they say nothing.
NO_PROGRAMS_HERE = {"bench", "bugs", "speed", "spin", "steady"}
UNNEEDED = ("doc", "man", "locale", "info", "zoneinfo", "i18n")

# The guest's first process. Its output is the evidence: vm.py reads the serial log.
INIT = """#!/bin/sh
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs run /run
export PATH=/usr/sbin:/usr/bin HOME=/root
for module in {modules}; do busybox insmod "/modules/$module"; done
echo "guest: version $(cat /proc/version)"
for device in /sys/bus/pci/devices/*; do
  echo "guest: pci $(cat $device/vendor):$(cat $device/device) $(basename $device)"
done
dpkg --install /payload/*.deb || echo "guest: dpkg failed"
echo "guest: package $(dpkg-query --show kvgpu-guest)"
echo "guest: library $(ldconfig -p | grep 'libcuda.so.1 ')"
/usr/libexec/kvgpu/kvgpu-agentd &
tries=0
while [ ! -S /run/kvgpu/guest.sock ] && [ "$tries" -lt 100 ]; do
  busybox usleep 100000; tries=$((tries + 1))
done
for program in /payload/programs/*; do
  name=$(basename "$program")
  echo "guest: begin $name $(sha256sum "$program" | cut -d' ' -f1)"
  "$program" </dev/null >/tmp/out 2>/tmp/err & pid=$!
  maps=
  while [ -z "$maps" ] && [ -d "/proc/$pid" ]; do
    maps=$(grep -m1 'libcuda' "/proc/$pid/maps" 2>/dev/null)
  done
  wait "$pid"; status=$?
  echo "guest: maps $maps"
  sed 's/^/guest: out /' /tmp/out
  sed 's/^/guest: err /' /tmp/err
  echo "guest: end $name status $status"
done
echo "guest: finished"
busybox poweroff -f
"""


def copy_qemu(folder: Path) -> None:
    """Copy QEMU, the TCG module, the firmware and every library they load."""
    libraries = folder / "lib"
    libraries.mkdir(parents=True)
    for binary in (QEMU, TCG_MODULE):
        for path in re.findall(r"(/\S+) \(0x", run("ldd", binary).decode()):
            shutil.copy(path, libraries)
    shutil.copy(QEMU, folder)
    (folder / "modules").mkdir()
    shutil.copy(TCG_MODULE, folder / "modules")
    (folder / "firmware").mkdir()
    for name in FIRMWARE:
        shutil.copy(name, folder / "firmware")


def unpack_modules(initrd: Path, work: Path) -> list[str]:
    """Take busybox and the modules out of the image's initrd; return the order of loading."""
    work.mkdir()
    archive = run("gzip", "-dc", initrd)
    run("cpio", "--extract", "--make-directories", "--quiet", stdin=archive, cwd=work)
    found = re.search(r"for module in (.*?); do", (work / "init").read_text())
    if found is None:
        raise SystemExit("vm_bundle: the guest image's init names no modules")
    return found[1].split()


def guest_package() -> Path:
    packages = list((ROOT / "dist").glob("kvgpu-guest_*.deb"))
    if len(packages) != 1:
        raise SystemExit("vm_bundle: no single dist/kvgpu-guest_*.deb: run make deb")
    return packages[0]


def make_root(root: Path, work: Path) -> None:
    """Make the guest's root folder: a Debian with dpkg, our package beside it, the programs."""
    run(
        "mmdebstrap",
        "--variant=essential",
        # Without usr-is-merged: usrmerge, and all of Perl. libstdc++: of the CUDA programs.
        "--include=usr-is-merged,mount,libstdc++6",
        "--mode=root",
        "--format=directory",
        "--quiet",
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in UNNEEDED),
        SUITE,
        root,
    )
    modules = unpack_modules(guest_image().initrd, work / "initrd")
    shutil.copy(work / "initrd/bin/busybox", root / "usr/bin/busybox")
    shutil.copytree(work / "initrd/modules", root / "modules")
    programs = root / "payload/programs"
    programs.mkdir(parents=True)
    shutil.copy(guest_package(), root / "payload")
    for path in sorted(PROGRAMS.iterdir()):
        is_program = path.is_file() and os.access(path, os.X_OK)
        if is_program and path.name not in NO_PROGRAMS_HERE:
            shutil.copy(path, programs)
    if not any(programs.iterdir()):
        raise SystemExit(f"vm_bundle: no programs in {PROGRAMS}: run make build")
    shutil.rmtree(root / "var/lib/apt", ignore_errors=True)
    shutil.rmtree(root / "var/cache", ignore_errors=True)
    init = root / "init"
    init.write_text(INIT.format(modules=" ".join(modules)))
    init.chmod(0o755)


def pack(root: Path, initrd: Path) -> None:
    """Write a folder as a compressed initial RAM disk."""
    names = subprocess.run(
        ["find", ".", "-print0"], cwd=root, check=True, capture_output=True
    ).stdout
    archive = run("cpio", "--null", "--create", "--format=newc", "--quiet", stdin=names, cwd=root)
    initrd.write_bytes(run("zstd", "-19", "--quiet", "--stdout", "-T0", stdin=archive))


def main() -> int:
    shutil.rmtree(BUNDLE, ignore_errors=True)
    BUNDLE.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=BUNDLE.parent, prefix="making-") as name:
        work = Path(name)
        copy_qemu(work / "qemu")
        run("tar", "-cJf", BUNDLE / "qemu.tar.xz", "-C", work, "qemu")
        make_root(work / "root", work)
        pack(work / "root", BUNDLE / "initrd.zst")
    # xz, which Python unpacks by itself: what is carried must be small.
    (BUNDLE / "vmlinux.xz").write_bytes(run("xz", "-T0", "--stdout", guest_image().vmlinux))
    for path in sorted(BUNDLE.iterdir()):
        print(f"vm_bundle: {path.relative_to(ROOT)}, {path.stat().st_size / (1 << 20):.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
