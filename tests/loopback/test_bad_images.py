# SPDX-License-Identifier: Apache-2.0
"""Bad input gets CUDA's error, and a line in the program's log that says what to do."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest
from framework.loopback import BUILD, Loopback

INVALID_IMAGE, NO_BINARY, INVALID_PTX, UNSUPPORTED_PTX, NOT_FOUND = 200, 209, 218, 222, 301
NOT_SUPPORTED = 801
PTX = ".version 8.0\n.target sm_80\n.address_size 64\n"


def load(host: Loopback, path: Path) -> tuple[int, str]:
    """Load an image in a program of its own; return the CUresult and what was logged."""
    script = Path(__file__).with_name("load_image.py")
    done = host.run(sys.executable, script, path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{host.logs()}"
    return int(done.stdout), done.stderr


def fatbin() -> bytes:
    return (BUILD / "tests/native/demo_zstd.fatbin").read_bytes()


def with_u64(data: bytes, offset: int, value: int) -> bytes:
    return data[:offset] + struct.pack("<Q", value) + data[offset + 8 :]


def damaged_fatbins() -> dict[str, bytes]:
    whole = fatbin()
    return {
        "cut inside of the code": whole[:1000],
        "cut inside of the first header": whole[:20],
        "entries longer than the file": with_u64(whole, 8, 1 << 40),
        "an entry longer than the rest": with_u64(whole, 16 + 8, 1 << 62),
        "an entry without a header": whole[:20] + bytes(4) + whole[24:],
        "payload overwritten": whole[:200] + b"\xa5" * (len(whole) - 200),
    }


def test_whole_fatbin_loads(host: Loopback, tmp_path: Path) -> None:
    (tmp_path / "whole.fatbin").write_bytes(fatbin())
    assert load(host, tmp_path / "whole.fatbin") == (0, "")


@pytest.mark.parametrize("how", sorted(damaged_fatbins()))
def test_corrupt_fatbin(host: Loopback, tmp_path: Path, how: str) -> None:
    path = tmp_path / "image.fatbin"
    path.write_bytes(damaged_fatbins()[how])
    result, log = load(host, path)
    assert result in (INVALID_IMAGE, NO_BINARY)
    assert "cuobjdump" in log or "build it for" in log


def test_truncated_cubin_is_no_whole_fatbin_or_cubin(host: Loopback, tmp_path: Path) -> None:
    header = bytearray(64)
    header[:7] = b"\x7fELF\x02\x01\x01"
    struct.pack_into("<Q", header, 40, 1 << 20)  # section headers far behind the end
    struct.pack_into("<HHH", header, 58, 64, 9, 1)
    path = tmp_path / "cut.cubin"
    path.write_bytes(header)
    result, log = load(host, path)
    assert result == INVALID_IMAGE
    assert "cut short" in log


def test_newer_ptx(host: Loopback, tmp_path: Path) -> None:
    path = tmp_path / "newer.ptx"
    path.write_text(PTX.replace("8.0", "99.1"))
    result, log = load(host, path)
    assert result == UNSUPPORTED_PTX
    assert ".version 99.1" in log
    assert "upgraded" in log


def test_broken_ptx(host: Loopback, tmp_path: Path) -> None:
    path = tmp_path / "broken.ptx"
    path.write_text(PTX + "nonsense\n")
    result, log = load(host, path)
    assert result == INVALID_PTX
    assert "line 4" in log
    assert "CU_JIT_ERROR_LOG_BUFFER" in log


def test_ptx_file_that_is_not_there(host: Loopback, tmp_path: Path) -> None:
    result, log = load(host, tmp_path / "none.ptx")
    assert result == NOT_FOUND
    assert "none.ptx" in log


def test_images_that_were_never_loaded_make_room(host: Loopback, tmp_path: Path) -> None:
    (tmp_path / "whole.fatbin").write_bytes(fatbin())
    script = Path(__file__).with_name("cut_images.py")
    done = host.run(sys.executable, script, tmp_path / "whole.fatbin")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{host.logs()}"
    assert [int(word) for word in done.stdout.split()] == [INVALID_IMAGE, NOT_SUPPORTED, 0]
    assert "more than 1 GiB" in done.stderr
