# SPDX-License-Identifier: Apache-2.0
"""Make build/gpu-vm: a virtual machine to carry to a GPU machine that has neither QEMU nor network.

Holds QEMU with its libraries, a Debian kernel, an initial RAM disk with its modules and the package
kvgpu-guest, and an empty ext4 disk. All else the guest takes from the machine it runs on: vm.py.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from framework.guest_image import (  # noqa: E402
    FETCH_KERNEL,
    KERNEL_METAPACKAGE,
    SUITE,
    extract_vmlinux,
    load_order,
    make_ext4,
    run,
)

BUNDLE = ROOT / "build/gpu-vm"
QEMU = Path("/usr/bin/qemu-system-x86_64")
TCG_MODULE = Path("/usr/lib/x86_64-linux-gnu/qemu/accel-tcg-x86_64.so")
FIRMWARE = (
    "/usr/share/seabios/bios-256k.bin",
    "/usr/share/qemu/kvmvapic.bin",
    "/usr/share/qemu/linuxboot_dma.bin",
    "/usr/share/qemu/pvh.bin",
)
# The cloud kernel of the guest image has no 9p.
KERNEL_WITH_9P = "linux-image-amd64"
MODULES = (
    *("virtio_pci", "virtio_blk", "virtio_console", "crc32c_generic", "ext4"),
    *("9pnet_virtio", "9p", "overlay"),
)
DISK_BYTES = 64 << 20
INIT = Path(__file__).with_name("vm_init.sh")


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


def fetch_kernel(work: Path) -> Path:
    """Return the unpacked package of the kernel."""
    fetch = FETCH_KERNEL.replace(KERNEL_METAPACKAGE, KERNEL_WITH_9P)
    options = ("--variant=custom", "--mode=root", "--format=directory", "--quiet")
    run("mmdebstrap", *options, f"--customize-hook={fetch}", SUITE, work / "apt")
    tree = work / "kernel"
    run("dpkg-deb", "--extract", work / "apt/kernel.deb", tree)
    return tree


def guest_package() -> Path:
    packages = list((ROOT / "dist").glob("kvgpu-guest_*.deb"))
    if len(packages) != 1:
        raise SystemExit("vm_bundle: no single dist/kvgpu-guest_*.deb: run make deb")
    return packages[0]


def make_root(root: Path, kernel: Path) -> None:
    """Fill the initial RAM disk: busybox, the modules in the order of loading, our package."""
    busybox = shutil.which("busybox")
    if busybox is None:
        raise SystemExit("vm_bundle: busybox is not installed: run make setup")
    for folder in ("bin", "modules", "payload"):
        (root / folder).mkdir(parents=True)
    shutil.copy(busybox, root / "bin/busybox")
    modules_dir = next((kernel / "lib/modules").iterdir())
    run("depmod", "--basedir", kernel, modules_dir.name)
    for number, module in enumerate(load_order(modules_dir, MODULES)):
        shutil.copy(modules_dir / module, root / f"modules/{number:02}-{Path(module).name}")
    add_ours(root)


def add_ours(root: Path) -> None:
    shutil.copy(guest_package(), root / "payload")
    shutil.copy(INIT, root / "init")
    (root / "init").chmod(0o755)


def pack(root: Path, initrd: Path) -> None:
    """Write a folder as a compressed initial RAM disk."""
    names = subprocess.run(
        ["find", ".", "-print0"], cwd=root, check=True, capture_output=True
    ).stdout
    archive = run("cpio", "--null", "--create", "--format=newc", "--quiet", stdin=names, cwd=root)
    initrd.write_bytes(run("zstd", "-19", "--quiet", "--stdout", "-T0", stdin=archive))


def pack_xz(data: bytes) -> bytes:
    """Compress as Python can unpack by itself: what is carried must be small."""
    return run("xz", "-T0", "--x86", "--lzma2=preset=6", "--stdout", stdin=data)


def make_bundle() -> None:
    shutil.rmtree(BUNDLE, ignore_errors=True)
    BUNDLE.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=BUNDLE.parent, prefix="making-") as name:
        work = Path(name)
        copy_qemu(work / "qemu")
        run("tar", "-cJf", BUNDLE / "qemu.tar.xz", "-C", work, "qemu")
        kernel = fetch_kernel(work)
        vmlinux = extract_vmlinux(next((kernel / "boot").glob("vmlinuz-*")))
        (BUNDLE / "vmlinux.xz").write_bytes(pack_xz(vmlinux))
        make_root(work / "root", kernel)
        pack(work / "root", BUNDLE / "initrd.zst")
        (work / "nothing").mkdir()
        make_ext4(work / "nothing", work / "disk", DISK_BYTES)
        (BUNDLE / "disk.xz").write_bytes(pack_xz((work / "disk").read_bytes()))


def replace_package() -> None:
    """Put the package and the first process anew into the bundle that is there."""
    with tempfile.TemporaryDirectory(dir=BUNDLE.parent, prefix="making-") as name:
        root = Path(name)
        archive = run("zstd", "-dc", BUNDLE / "initrd.zst")
        run("cpio", "--extract", "--make-directories", "--quiet", stdin=archive, cwd=root)
        shutil.rmtree(root / "payload")
        (root / "payload").mkdir()
        add_ours(root)
        pack(root, BUNDLE / "initrd.zst")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--package-only", action="store_true", help="the rest is there already")
    if parser.parse_args().package_only:
        replace_package()
    else:
        make_bundle()
    for path in sorted(BUNDLE.iterdir()):
        print(f"vm_bundle: {path.relative_to(ROOT)}, {path.stat().st_size / (1 << 20):.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
