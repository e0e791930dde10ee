# SPDX-License-Identifier: Apache-2.0
"""Configuration, and the choice of a driver by asking each candidate in a child process."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvgpu.host import inventory, paths
from kvgpu.host.errors import ConfigError
from kvgpu.host.inventory import Asker, Driver, choose_driver
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
    return asyncio.run(choose_driver(setting, Asker(worker, timeout_s=1.0)))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make this a machine with such libraries of NVIDIA's, with a GPU or without."""

    def make(*libraries: str, has_gpu: bool) -> None:
        found = [tmp_path / name for name in libraries]
        monkeypatch.setattr(inventory, "find_nvidia_libcuda", lambda: found)
        monkeypatch.setattr(inventory, "has_nvidia_gpu", lambda: has_gpu)
        monkeypatch.setattr(paths, "find_software_gpu", lambda: tmp_path / "software" / "good")

    return make


def test_first_that_has_a_device_is_taken(
    worker: Path, tmp_path: Path, host: Callable[..., None]
) -> None:
    host("crashes", "empty", "good", has_gpu=True)
    for setting in ("auto", "nvidia"):
        assert choose(setting, worker) == Driver(tmp_path / "good", {"devices": [{"name": "good"}]})


@pytest.mark.parametrize("libraries", [[], ["empty"], ["crashes", "hangs"]])
def test_auto_takes_the_software_gpu_where_there_is_no_other_and_says_why(
    libraries: list[str],
    worker: Path,
    tmp_path: Path,
    host: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    host(*libraries, has_gpu=False)
    assert choose("auto", worker).path == tmp_path / "software" / "good"
    assert ("the software GPU takes its place" in caplog.text) == bool(libraries)
    assert all(f"{tmp_path / name}: " in caplog.text for name in libraries)
    host(has_gpu=True)  # no driver of NVIDIA's is installed
    assert choose("auto", worker).path == tmp_path / "software" / "good"


@pytest.mark.parametrize(
    ("library", "reason"),
    [("hangs", "no answer within 1 s"), ("crashes", "no such device"), ("empty", "no devices")],
)
def test_auto_does_not_give_up_a_gpu_whose_driver_does_not_answer_now(
    library: str, reason: str, worker: Path, host: Callable[..., None]
) -> None:
    host(library, has_gpu=True)
    with pytest.raises(ConfigError, match=rf"{library}: .*{reason}.*or choose --driver software"):
        choose("auto", worker)


def test_auto_without_the_software_gpu_says_so(
    worker: Path, host: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    find = paths.find_software_gpu
    host("empty", has_gpu=False)
    monkeypatch.setattr(paths, "find_software_gpu", find)
    monkeypatch.setenv("KVGPU_SOFTWARE_GPU", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="no devices; the software GPU not found"):
        choose("auto", worker)


@pytest.mark.parametrize(
    ("vendor", "kind", "driver", "is_one"),
    [
        ("0x10de", "0x030200", "nvidia", True),
        ("0x10de", "0x030000", None, True),  # its driver is not loaded yet
        ("0x10de", "0x030200", "vfio-pci", False),  # a VM's
        ("0x10de", "0x040300", "snd_hda_intel", False),  # its sound
        ("0x1002", "0x030000", "amdgpu", False),
    ],
)
def test_nvidia_gpus_are_told_by_pci(
    vendor: str, kind: str, driver: str | None, is_one: bool, tmp_path: Path
) -> None:
    device = tmp_path / "pci" / "0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text(f"{kind}\n")
    if driver:
        (device / "driver").symlink_to(tmp_path / "drivers" / driver)
    assert inventory.has_nvidia_gpu(tmp_path, tmp_path / "pci") == is_one


def test_nvidia_gpus_are_told_by_device_nodes_where_no_pci_is_seen(tmp_path: Path) -> None:
    assert not inventory.has_nvidia_gpu(tmp_path, tmp_path / "pci")
    (tmp_path / "nvidiactl").touch()
    assert inventory.has_nvidia_gpu(tmp_path, tmp_path / "pci")


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
