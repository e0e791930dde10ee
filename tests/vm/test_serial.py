# SPDX-License-Identifier: Apache-2.0
"""A guest without ivshmem: served over its virtio-serial port alone, with the same results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from framework.guest_image import GuestImage
from framework.host_services import REPOSITORY, RUNTIME_DIR, wait_until
from framework.packages import install_command
from framework.vm import AS_NOBODY, Vm

from kvgpu.host.client import ApiClient
from kvgpu.host.messages import SessionListRequest

pytestmark = [pytest.mark.vm, pytest.mark.timeout(1800)]

TESTS = REPOSITORY / "build" / "release" / "tests"
PROGRAM, CASES = TESTS / "programs" / "demo", TESTS / "loopback" / "driver_cases"
ALONE = "error:*,initialisation:*,context:*"  # cases that want a process of their own


@pytest.fixture(scope="module")
def serial(host: Path, image: GuestImage, repo: Path) -> Iterator[Vm]:
    payload = [repo, PROGRAM, CASES]
    with Vm("kvgpu-serial", image, payload, xml_options=["--no-shmem"]) as vm:
        vm.start()
        vm.check(install_command("/payload/repo", "kvgpu-guest"), timeout_s=240)
        yield vm


def test_serial_vm_has_no_shared_memory(serial: Vm) -> None:
    assert "<shmem" not in serial.definition()
    assert serial.run("lspci -n | grep 1af4:1110").status == 1
    assert not Path(f"/dev/shm/kvgpu-{serial.uuid()}").exists()
    log = serial.check("journalctl -u kvgpu-guest")
    assert "sessions run over the port alone" in log


def test_serial_check_finds_the_slow_form_and_says_what_to_do(serial: Vm) -> None:
    text = serial.run(f"{AS_NOBODY} kvgpu-check", timeout_s=240)
    assert text.status == 0, text.stdout + text.stderr
    slow = "no shared memory device: slow byte-stream form over virtio-serial"
    assert f"ok       device   {slow}" in text.stdout
    assert "result correct" in text.stdout
    output = serial.run(f"{AS_NOBODY} kvgpu-check --json", timeout_s=240)
    assert output.status == 0, output.stdout + output.stderr
    report = json.loads(output.stdout)
    found = {result["check"]: result for result in report["checks"]}
    assert report["ok"]
    assert found["device"]["found"] == slow
    assert "kvgpu vm xml --from" in found["device"]["advice"]
    assert "byte-stream form" in found["region"]["found"]


def test_serial_unmodified_program_computes(serial: Vm) -> None:
    output = serial.run(f"cd /tmp && {AS_NOBODY} /payload/demo", timeout_s=600)
    assert output.status == 0, output.stdout + output.stderr
    assert "demo: all results correct" in output.stdout
    with ApiClient(RUNTIME_DIR) as api:
        wait_until("its session is gone", lambda: not api.ask(SessionListRequest())["sessions"], 10)


def test_serial_driver_cases(serial: Vm) -> None:
    command = f"/payload/driver_cases --test-case-exclude='{ALONE}'"
    output = serial.run(f"cd /tmp && {AS_NOBODY} {command}", timeout_s=1500)
    assert output.status == 0, output.stdout[-4000:] + output.stderr[-2000:]
    assert "0 failed" in output.stdout
