# SPDX-License-Identifier: Apache-2.0
"""The parts of the guest image's recipe that can go wrong without a machine."""

from __future__ import annotations

import lzma
import struct
from pathlib import Path

import pytest
from framework.guest_image import ImageError, extract_vmlinux, load_order


def bzimage(path: Path, payload: bytes) -> Path:
    """A file laid out as Documentation/arch/x86/boot.rst says, with one setup sector."""
    image = bytearray(2 * 512)
    image[0x1F1] = 1
    struct.pack_into("<II", image, 0x248, 64, len(payload) + 4)
    path.write_bytes(bytes(image) + bytes(64) + payload + struct.pack("<I", 0) + b"signature")
    return path


def test_kernel_is_unpacked_without_its_size_field(tmp_path: Path) -> None:
    kernel = b"\x7fELF" + bytes(range(256)) * 40
    packed = bzimage(tmp_path / "vmlinuz", lzma.compress(kernel, lzma.FORMAT_XZ))
    assert extract_vmlinux(packed) == kernel


def test_unknown_compression_is_named(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="deadbeef"):
        extract_vmlinux(bzimage(tmp_path / "vmlinuz", b"\xde\xad\xbe\xef0000"))


def module_tree(folder: Path) -> Path:
    (folder / "modules.dep").write_text(
        "kernel/ext4.ko: kernel/jbd2.ko kernel/mbcache.ko\n"
        "kernel/jbd2.ko:\nkernel/mbcache.ko:\nkernel/virtio-blk.ko: kernel/jbd2.ko\n"
    )
    (folder / "modules.builtin").write_text("kernel/virtio_pci.ko\n")
    return folder


def test_modules_load_after_what_they_need_and_once(tmp_path: Path) -> None:
    order = load_order(module_tree(tmp_path), ["virtio_pci", "virtio_blk", "ext4"])
    assert order == [f"kernel/{m}.ko" for m in ("jbd2", "virtio-blk", "mbcache", "ext4")]


def test_missing_module_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="no module nfs"):
        load_order(module_tree(tmp_path), ["nfs"])
