# SPDX-License-Identifier: Apache-2.0
"""Settings that cannot be taken: cuInit fails, and one line says where and what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from framework.loopback import BUILD, Loopback
from framework.settings import probe, user_file

INVALID_VALUE = 1


def complaint(host: Loopback, **variables: str) -> str:
    """Return the one line that the program's user sees."""
    seen, done = probe(host, **variables)
    assert seen == {"init": str(INVALID_VALUE)}, (done.stdout, done.stderr)
    (line,) = done.stderr.splitlines()
    assert line.endswith("CUDA is not started")
    return line


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("devices = 1\nmemory_mib =", "2: no value"),
        ("devices = 1\nmemory_m", "2: no `key = value`"),
        ('log = "deb', "1: the string has no end"),
    ],
)
def test_truncated_file(host: Loopback, tmp_path: Path, text: str, what: str) -> None:
    line = complaint(host, **user_file(tmp_path, text))
    assert f"{tmp_path}/kvgpu/client.toml:{what}" in line


def test_unknown_key_names_the_nearest(host: Loopback, tmp_path: Path) -> None:
    line = complaint(host, **user_file(tmp_path, "\n# typo\nmemroy_mib = 4096\n"))
    assert "client.toml:3: unknown key memroy_mib; did you mean memory_mib?" in line


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("devices = 0", "1: devices is a whole number from 1 to 16, not 0"),
        ("compute_percent = 101", "1: compute_percent is a whole number from 1 to 100, not 101"),
        ("memory_mib = 99999999999999999999", "1: memory_mib is a whole number"),
        ('devices = "2"', "1: devices is a number, without quotes"),
        ("log = 3", "1: log is a string in quotes"),
        ('log = "loud"', "1: log is one of off, error, warn, info, debug, trace, not loud"),
        ("devices = 1\ndevices = 2", "2: this key stands there already"),
        ("devices = 1 2", "1: a value is a whole number"),
        ("[gpu]\ndevices = 1", "1: tables are not known here"),
        ('log_file = "/nonexistent/log"', "/nonexistent/log cannot be written: No such file"),
    ],
)
def test_value_that_cannot_be(host: Loopback, tmp_path: Path, text: str, what: str) -> None:
    assert what in complaint(host, **user_file(tmp_path, text + "\n"))


def test_bad_variable(host: Loopback) -> None:
    line = complaint(host, KVGPU_DEVICES="many")
    assert "KVGPU_DEVICES in the environment: devices is a whole number from 1 to 16" in line


def test_folder_instead_of_the_file(host: Loopback, tmp_path: Path) -> None:
    (tmp_path / "kvgpu/client.toml").mkdir(parents=True)
    assert "cannot be read: Is a directory" in complaint(host, XDG_CONFIG_HOME=str(tmp_path))


AS_NOBODY = """
import ctypes, os
cuda = ctypes.CDLL("libcuda.so.1")
os.getuid() or os.setuid(65534)
print(cuda.cuInit(0))
"""


def test_folder_of_another_user(tmp_path: Path) -> None:
    """As after `su`: HOME is a folder that this user may not enter."""
    (tmp_path / "home").mkdir(mode=0)
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY],
        env={
            "LD_LIBRARY_PATH": str(BUILD / "guest/libcuda"),
            "HOME": str(tmp_path / "home"),
            "KVGPU_SOCKET": "/nonexistent",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    # No complaint about settings: it gets as far as the socket.
    assert done.stdout == "100\n", done.stderr
    assert "cannot reach /nonexistent" in done.stderr
