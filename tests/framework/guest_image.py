# SPDX-License-Identifier: Apache-2.0
"""Make the small Debian guest that VM tests and the demo boot.

Owns build/guest-image/KEY/{vmlinux,initrd.img,rootfs.ext4}. KEY covers everything that goes in: a
changed recipe makes a new image, an unchanged one is reused. The guest is Debian with systemd, udev
and QEMU's guest agent, and has no network: what it needs comes on a second disk (see vm.py).
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CACHE = REPOSITORY / "build" / "guest-image"
SUITE = "bookworm"
PACKAGES = ("systemd-sysv", "udev", "kmod", "procps", "pciutils", "python3", "qemu-guest-agent")
KERNEL_METAPACKAGE = "linux-image-cloud-amd64"
# crc32c_generic is a soft dependency of ext4: not in modules.dep, yet the mount fails without it.
MODULES = ("virtio_pci", "virtio_blk", "virtio_console", "crc32c_generic", "ext4")
UNPACKERS = {b"\x02!L\x18": "lz4", b"\xfd7zXZ\x00": "xz", b"(\xb5/\xfd": "zstd"}
ROOTFS_BYTES = 1 << 30
EATMYDATA_HOOKS = Path("/usr/share/mmdebstrap/hooks/eatmydata")

# The kernel package is only fetched, not installed: a guest that is booted by QEMU directly needs
# neither its initramfs tools nor a boot loader.
FETCH_KERNEL = f"""set -e; export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"; cd "$1"
name=$(apt-cache depends --important {KERNEL_METAPACKAGE} | sed -n 's/^ *Depends: //p' | head -n1)
apt-get download --quiet "$name"; mv linux-image-*.deb kernel.deb"""

CONFIGURE = r"""set -e
echo kvgpu-guest >"$1/etc/hostname"
echo '/dev/vda / ext4 rw,noatime 0 0' >"$1/etc/fstab"
chroot "$1" passwd --quiet --delete root
mkdir -p "$1/payload"
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer \
  fstrim.timer systemd-timesyncd.service e2scrub_reap.service; do
  ln -sf /dev/null "$1/etc/systemd/system/$unit"
done
"""

INIT = """#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /root
/bin/busybox mount -t devtmpfs dev /dev
for module in {modules}; do /bin/busybox insmod "/modules/$module"; done
tries=0
while [ ! -b /dev/vda ] && [ "$tries" -lt 100 ]; do
  /bin/busybox usleep 50000; tries=$((tries + 1))
done
/bin/busybox mount -t ext4 -o rw,noatime /dev/vda /root || exec /bin/busybox sh
/bin/busybox mount --move /dev /root/dev
exec /bin/busybox switch_root /root /sbin/init
"""


class ImageError(Exception):
    """The image cannot be made; the message says what to do."""


@dataclass(frozen=True, slots=True)
class GuestImage:
    vmlinux: Path
    initrd: Path
    rootfs: Path


def run(*command: str | Path, stdin: bytes | None = None, cwd: Path | None = None) -> bytes:
    """Return the output of a command; raise ImageError with its messages if it fails."""
    if shutil.which(str(command[0])) is None:
        raise ImageError(f"{command[0]} is not installed: run `make setup`")
    done = subprocess.run([str(c) for c in command], input=stdin, cwd=cwd, capture_output=True)
    if done.returncode != 0:
        tail = done.stderr.decode(errors="replace")[-2000:]
        raise ImageError(f"{command[0]} failed with status {done.returncode}:\n{tail}")
    return done.stdout


def image_key() -> str:
    """Everything that goes in is written in this file, so its text is the key."""
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]


def bootstrap(root: Path, mirror: str | None) -> None:
    hooks = [f"--hook-dir={EATMYDATA_HOOKS}"] if EATMYDATA_HOOKS.is_dir() else []
    run(
        "mmdebstrap",
        "--variant=minbase",
        "--mode=root",
        "--format=directory",
        "--quiet",
        f"--include={','.join(PACKAGES)}",
        *hooks,
        f"--customize-hook={FETCH_KERNEL}",
        f"--customize-hook={CONFIGURE}",
        "--dpkgopt=path-exclude=/usr/share/doc/*",
        "--dpkgopt=path-exclude=/usr/share/man/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*",
        SUITE,
        root,
        *([mirror] if mirror else []),
    )


def extract_vmlinux(bzimage: Path) -> bytes:
    """Unpack the kernel here once: in an emulated guest that would cost seconds at each boot."""
    data = bzimage.read_bytes()
    # Linux Documentation/arch/x86/boot.rst: setup_sects, payload_offset, payload_length. The
    # payload's last four bytes are its size when unpacked, not part of the compressed stream.
    setup_bytes = (data[0x1F1] + 1) * 512
    offset, length_bytes = struct.unpack_from("<II", data, 0x248)
    payload = data[setup_bytes + offset : setup_bytes + offset + length_bytes - 4]
    for magic, unpacker in UNPACKERS.items():
        if payload.startswith(magic):
            return run(unpacker, "-dc", stdin=payload)
    raise ImageError(f"{bzimage.name}: unknown compression, magic {payload[:4].hex()}")


def load_order(modules_dir: Path, wanted: Iterable[str]) -> list[str]:
    """List the wanted modules and what they need, dependencies first; skip what is built in."""
    needs: dict[str, list[str]] = {}
    for line in (modules_dir / "modules.dep").read_text().splitlines():
        path, _, rest = line.partition(":")
        needs[path] = rest.split()
    by_name = {Path(path).name.split(".")[0].replace("-", "_"): path for path in needs}
    builtin = {
        Path(line).name.split(".")[0].replace("-", "_")
        for line in (modules_dir / "modules.builtin").read_text().splitlines()
    }
    order: list[str] = []

    def visit(path: str) -> None:
        for dependency in needs[path]:
            if dependency not in order:
                visit(dependency)
        if path not in order:
            order.append(path)

    for name in wanted:
        if name in by_name:
            visit(by_name[name])
        elif name not in builtin:
            raise ImageError(f"the guest kernel has no module {name}")
    return order


def make_initrd(kernel_tree: Path, work: Path) -> bytes:
    """Return a gzip-compressed cpio archive: busybox, the modules and a script that mounts root."""
    busybox = shutil.which("busybox")
    if busybox is None:
        raise ImageError("busybox is not installed: run `make setup`")
    modules_dir = next((kernel_tree / "lib" / "modules").iterdir())
    run("depmod", "--basedir", kernel_tree, modules_dir.name)
    tree = work / "initrd"
    (tree / "bin").mkdir(parents=True)
    (tree / "modules").mkdir()
    shutil.copy2(busybox, tree / "bin" / "busybox")
    modules = load_order(modules_dir, MODULES)
    for module in modules:
        shutil.copy2(modules_dir / module, tree / "modules")
    init = tree / "init"
    init.write_text(INIT.format(modules=" ".join(Path(m).name for m in modules)))
    init.chmod(0o755)
    names = b"\0".join(str(p.relative_to(tree)).encode() for p in sorted(tree.rglob("*")))
    archive = run("cpio", "--null", "--create", "--format=newc", "--quiet", stdin=names, cwd=tree)
    return run("gzip", "-1", stdin=archive)


def make_ext4(tree: Path, image: Path, size_bytes: int) -> None:
    """Write a folder into an ext4 file system, without loop devices."""
    with image.open("wb") as file:
        file.truncate(size_bytes)
    options = "root_owner=0:0,lazy_itable_init=1"
    run("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-E", options, "-d", tree, "-F", image)


def build(folder: Path, mirror: str | None) -> None:
    """Make the three files in a temporary folder that becomes FOLDER when all are there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="making-") as name:
        work = Path(name)
        work.chmod(0o755)
        root = work / "root"
        bootstrap(root, mirror)
        kernel_tree = work / "kernel"
        run("dpkg-deb", "--extract", root / "kernel.deb", kernel_tree)
        (root / "kernel.deb").unlink()
        out = work / "image"
        out.mkdir()
        bzimage = next((kernel_tree / "boot").glob("vmlinuz-*"))
        (out / "vmlinux").write_bytes(extract_vmlinux(bzimage))
        (out / "initrd.img").write_bytes(make_initrd(kernel_tree, work))
        make_ext4(root, out / "rootfs.ext4", ROOTFS_BYTES)
        for old in folder.parent.glob("[0-9a-f]*"):
            shutil.rmtree(old)  # of an earlier recipe
        out.rename(folder)


def guest_image(mirror: str | None = None) -> GuestImage:
    """Return the image, made now if it is not there yet."""
    folder = CACHE / image_key()
    if not folder.is_dir():
        build(folder, mirror)
    return GuestImage(folder / "vmlinux", folder / "initrd.img", folder / "rootfs.ext4")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mirror", help="Debian mirror, instead of deb.debian.org")
    try:
        print(guest_image(parser.parse_args().mirror).rootfs.parent)
    except ImageError as error:
        print(f"guest image: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
