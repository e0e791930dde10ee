# SPDX-License-Identifier: Apache-2.0
"""Configuration, and the choice of a driver by asking each candidate in a child process."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from kvgpu.host import inventory, paths
from kvgpu.host.config import HostConfig, load_config
from kvgpu.host.errors import ConfigError
from kvgpu.host.inventory import Driver, choose_driver
from kvgpu.host.units import GIB, MIB, format_size, parse_size

ANSWERS = {
    "good": """echo '{"devices": [{"name": "good"}]}'""",
    "empty": """echo '{"devices": []}'""",
    "crashes": "echo no such device >&2; kill -SEGV $$",
    "hangs": "exec sleep 30",
    "babbles": "echo hello",
}


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    """A worker whose answer depends on the driver's file name."""
    cases = "\n".join(f"*/{name}) {script} ;;" for name, script in ANSWERS.items())
    path = tmp_path / "worker"
    path.write_text(f'#!/bin/sh\ncase "$3" in\n{cases}\nesac\n')
    path.chmod(0o755)
    return path


def choose(setting: str, worker: Path) -> Driver:
    return asyncio.run(choose_driver(setting, worker, timeout_s=1.0))


def test_auto_takes_the_first_that_has_a_device(
    worker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = [tmp_path / "crashes", tmp_path / "empty"]
    monkeypatch.setattr(inventory, "find_nvidia_libcuda", lambda: bad)
    monkeypatch.setattr(paths, "find_software_gpu", lambda: tmp_path / "good")
    assert choose("auto", worker).path == tmp_path / "good"
    monkeypatch.setattr(inventory, "find_nvidia_libcuda", lambda: [tmp_path / "good"])
    assert choose("nvidia", worker).devices == [{"name": "good"}]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("empty", "no devices"),
        ("crashes", "status -11: no such device"),
        ("babbles", "not JSON"),
        ("hangs", "no answer within 1 s"),
    ],
)
def test_driver_that_does_not_work_is_refused_with_the_reason(
    name: str, reason: str, worker: Path
) -> None:
    begin_s = time.monotonic()
    with pytest.raises(ConfigError, match=reason):
        choose(f"/x/{name}", worker)
    assert time.monotonic() - begin_s < 10


def test_configuration_file_is_optional_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "host.toml"
    assert load_config(path) == HostConfig()
    path.write_text('driver = "software"\ngrace_s = 0.5\n')
    assert load_config(path) == HostConfig(driver="software", grace_s=0.5)
    for wrong in ("grace_s = -1", "no_such_key = 1", "driver = "):
        path.write_text(wrong)
        with pytest.raises(ConfigError, match=r"host\.toml"):
            load_config(path)


def test_environment_variable_names_file_or_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "libcuda.so.1"
    monkeypatch.setenv("KVGPU_LIBCUDA_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match="not found"):
        paths.find_libcuda_dir()
    library.write_bytes(b"")
    assert paths.find_libcuda_dir() == tmp_path
    monkeypatch.setenv("KVGPU_LIBCUDA_DIR", str(library))
    assert paths.find_libcuda_dir() == tmp_path


def test_worker_environment_does_not_lead_back_to_kvgpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KVGPU_SOCKET", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "x")
        assert name not in inventory.worker_environment()
    assert inventory.worker_environment()["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("8GiB", 8 * GIB), ("512M", 512 * MIB), ("1.5 GB", 1536 * MIB), ("4096", 4096)],
)
def test_sizes_are_read(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "0", "-1G", "8 apples", "GiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a size"):
        parse_size(text)


def test_sizes_are_written_readably() -> None:
    assert [format_size(n) for n in (0, 2048, 3 * GIB // 2)] == ["0 B", "2 KiB", "1.5 GiB"]
