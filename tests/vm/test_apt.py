# SPDX-License-Identifier: Apache-2.0
"""The guest package in a VM, as apt sees it."""

from __future__ import annotations

import pytest
from framework.packages import use_repo_command
from framework.vm import Vm

pytestmark = [pytest.mark.vm, pytest.mark.timeout(600)]


def test_apt_has_the_package_by_name_from_the_signed_repository(vm: Vm) -> None:
    policy = vm.check("apt-cache policy kvgpu-guest")
    installed = policy.partition("Installed: ")[2].splitlines()[0]
    assert f"*** {installed} 500" in policy
    assert "file:/payload/repo stable/main amd64 Packages" in policy


def test_apt_refuses_a_repository_that_was_changed_after_signing(vm: Vm) -> None:
    vm.check("rm -rf /tmp/repo && cp -r /payload/repo /tmp/repo")
    vm.check("echo 'Label: other' >>/tmp/repo/dists/stable/InRelease")
    vm.check("sed -i 's/^Label: kvgpu/Label: other/' /tmp/repo/dists/stable/InRelease")
    try:
        changed = vm.run(use_repo_command("/tmp/repo"))
        assert changed.status != 0
        assert "signature" in changed.stderr, changed.stdout + changed.stderr
    finally:
        vm.check(use_repo_command("/payload/repo"))
