# SPDX-License-Identifier: Apache-2.0
"""kvgpu-check: each check's line, where all is well and where one part is broken."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from framework.loopback import BUILD, LOOPBACK, Loopback, loopback

CHECK = BUILD / "guest/check/kvgpu-check"
SOFTWARE_GPU = BUILD / "host/software_gpu"
CHECKS = ["device", "agent", "region", "memory", "kick", "host", "library", "kernel"]


def run_alone(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """As an administrator in a VM, without `kvgpu run`."""
    return subprocess.run(
        [str(CHECK), *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def results(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, str]]:
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["ok"] is (done.returncode == 0)
    assert [result["check"] for result in report["checks"]] == CHECKS
    return {result["check"]: result for result in report["checks"]}


def test_all_is_well_under_kvgpu_run(host: Loopback) -> None:
    output = host.check(CHECK)
    lines = [line.split() for line in output.splitlines()]
    assert [line[:2] for line in lines] == [["ok", check] for check in CHECKS], output
    for words in (
        "a process of the host (kvgpu run)",
        "write-back; copies in",
        "an eventfd of the host",
        "kvgpu protocol 0.",
        "libcuda.so.1",
        "driver 13.0, result correct",
    ):
        assert words in output


def test_json_says_the_same(host: Loopback) -> None:
    found = results(host.run(CHECK, "--json"))
    assert {result["state"] for result in found.values()} == {"ok"}
    assert "GB/s" in found["memory"]["found"]


def test_session_without_shared_memory_is_told_and_all_is_well() -> None:
    with loopback(KVGPU_TRANSPORT="stream") as host:
        done = host.run(CHECK, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = results(done)
    states = {check: result["state"] for check, result in found.items()}
    assert states == {check: "skipped" if check == "memory" else "ok" for check in CHECKS}
    assert "not shared with the host: byte-stream form" in found["region"]["found"]


def test_agent_that_is_not_running_fails_with_advice(tmp_path: Path) -> None:
    socket = str(tmp_path / "nobody.sock")
    library = str(BUILD / "guest/libcuda")
    done = run_alone("--json", KVGPU_SOCKET=socket, LD_LIBRARY_PATH=library)
    assert done.returncode == 1
    found = results(done)
    assert found["agent"]["state"] == "FAILED"
    assert f"cannot reach {socket}" in found["agent"]["found"]
    assert "systemctl" in found["agent"]["advice"]
    assert {found[check]["state"] for check in ("region", "memory", "kick", "host")} == {"skipped"}
    assert found["library"]["state"] == "ok"
    assert found["kernel"]["state"] == "FAILED"
    assert "cuInit answers CUDA_ERROR_NO_DEVICE (100)" in found["kernel"]["found"]


def test_no_device_and_no_agent_fails_with_advice_in_plain_text() -> None:
    environment = {"KVGPU_SOCKET": ""}
    done = subprocess.run(
        ["env", "-u", "KVGPU_SOCKET", str(CHECK)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    device = "FAILED   device   neither PCI device 1af4:1110 nor port org.kvgpu.0 in this VM"
    assert device in done.stdout
    assert "-> the host's administrator adds them" in done.stdout


def test_foreign_libcuda_is_told_apart(host: Loopback) -> None:
    """The software GPU's library stands for NVIDIA's: a libcuda.so.1 that is not kvgpu's."""
    done = host.run("env", f"LD_LIBRARY_PATH={SOFTWARE_GPU}", CHECK, "--json")
    assert done.returncode == 1
    found = results(done)
    assert found["library"]["state"] == "FAILED"
    assert f"{SOFTWARE_GPU}/libcuda.so.1 is not kvgpu's" in found["library"]["found"]
    assert "LD_LIBRARY_PATH" in found["library"]["advice"]
    assert found["kernel"]["state"] == "skipped"


@pytest.mark.parametrize(
    ("error", "name"), [(719, "CUDA_ERROR_LAUNCH_FAILED"), (700, "CUDA_ERROR_ILLEGAL_ADDRESS")]
)
def test_kernel_that_fails_is_reported(error: int, name: str) -> None:
    fault = f"cuLaunchKernel:1:{error}"
    driver = str(LOOPBACK / "libfault_driver.so")
    with loopback(driver, jail=False, KVGPU_FAULT=fault) as host:
        done = host.run(CHECK, "--json")
    assert done.returncode == 1, done.stdout + done.stderr
    found = results(done)
    assert found["library"]["state"] == "ok"
    assert found["kernel"]["state"] == "FAILED"
    assert f"{name} ({error})" in found["kernel"]["found"]


def test_wrong_arguments_are_refused_and_help_is_given() -> None:
    assert run_alone("--unknown").returncode == 2
    helped = run_alone("--help")
    assert helped.returncode == 0
    assert "--json" in helped.stdout
