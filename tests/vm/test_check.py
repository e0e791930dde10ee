# SPDX-License-Identifier: Apache-2.0
"""kvgpu-check in a virtual machine, and the memory type that is found there."""

from __future__ import annotations

import json

import pytest
from framework.vm import AS_NOBODY, Vm

pytestmark = [pytest.mark.vm, pytest.mark.timeout(600)]

CHECKS = ["device", "agent", "region", "memory", "kick", "host", "library", "kernel"]


def test_guest_check_finds_that_all_is_well(vm: Vm) -> None:
    output = vm.run(f"{AS_NOBODY} kvgpu-check", timeout_s=240)
    assert output.status == 0, output.stdout + output.stderr
    # What could be better stands below its check, indented: this VM has no doorbell.
    lines = [line.split() for line in output.stdout.splitlines() if not line.startswith(" ")]
    assert [line[:2] for line in lines] == [["ok", check] for check in CHECKS], output.stdout
    assert "(1af4:1110)" in output.stdout
    assert "/kvgpu/libcuda.so.1" in output.stdout
    assert "result correct" in output.stdout


def test_guest_check_says_what_to_do_without_the_agent(vm: Vm) -> None:
    vm.check("systemctl stop kvgpu-agentd")
    try:
        output = vm.run("kvgpu-check --json", timeout_s=240)
    finally:
        vm.check("systemctl start kvgpu-agentd")
    assert output.status == 1, output.stdout + output.stderr
    found = {result["check"]: result for result in json.loads(output.stdout)["checks"]}
    assert found["device"]["state"] == "ok"
    assert found["agent"]["state"] == "FAILED"
    assert "systemctl start kvgpu-agentd" in found["agent"]["advice"]


def test_memory_type_is_measured_and_reported(vm: Vm) -> None:
    """An emulated processor has no cache modes, KVM on Intel overrides them: write-back both."""
    output = vm.run("kvgpu-check --json", timeout_s=240)
    found = {result["check"]: result for result in json.loads(output.stdout)["checks"]}
    print("figure: in the VM the region is", found["memory"]["found"])
    assert found["memory"]["found"].startswith("write-back; copies in ")
    program = vm.run(f"cd /tmp && KVGPU_LOG=debug {AS_NOBODY} /payload/demo", timeout_s=240)
    assert program.status == 0, program.stdout + program.stderr
    assert "memory type of the region: write-back (measured;" in program.stderr


def test_memory_type_told_otherwise_streams_with_the_same_result(vm: Vm) -> None:
    environment = "KVGPU_LOG=debug KVGPU_MEMORY_TYPE=wc"
    program = vm.run(f"cd /tmp && {environment} {AS_NOBODY} /payload/demo", timeout_s=240)
    assert program.status == 0, program.stdout + program.stderr
    assert "the first streaming copy into the region" in program.stderr
