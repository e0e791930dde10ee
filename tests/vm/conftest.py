# SPDX-License-Identifier: Apache-2.0
"""One VM with the guest package, made when the first test wants it; a test finds it running."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from framework.guest_image import GuestImage, guest_image
from framework.host_services import REPOSITORY, kvgpud, libvirt, virsh
from framework.packages import built_repo, install_command
from framework.vm import Vm

LOGS = REPOSITORY / "build" / "vm-tests"
PROGRAM = REPOSITORY / "build" / "release" / "tests" / "programs" / "demo"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the logs' ends beside a failure."""
    report = yield
    if report.failed:
        for log in (LOGS / "kvgpud.log", *(REPOSITORY / "build" / "vm").glob("*/serial.log")):
            if log.is_file():
                tail = log.read_text(errors="replace").splitlines()[-40:]
                report.sections.append((str(log), "\n".join(tail)))
    return report


@pytest.fixture(scope="session")
def image() -> GuestImage:
    return guest_image()


@pytest.fixture(scope="session")
def daemons() -> Iterator[contextlib.ExitStack]:
    """libvirt with the hook, and kvgpud; a test that kills one puts the next one here."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(libvirt(LOGS))
        stack.enter_context(kvgpud(LOGS))
        yield stack


@pytest.fixture(scope="session")
def host(daemons: contextlib.ExitStack) -> Path:
    """A host that serves VMs; the folder with its daemons' logs."""
    return LOGS


@pytest.fixture(scope="session")
def repo() -> Path:
    return built_repo()


@pytest.fixture(scope="session")
def linger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CUDA program that runs until it is killed."""
    return compiled("linger", tmp_path_factory)


@pytest.fixture(scope="session")
def pinned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CUDA program that tries what the kernel allows on pinned memory."""
    return compiled("pinned", tmp_path_factory)


@pytest.fixture(scope="session")
def wakeup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CUDA program that measures how long a sleeping worker takes to answer."""
    return compiled("wakeup", tmp_path_factory)


def compiled(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("programs") / name
    source = Path(__file__).with_name(f"{name}.c")
    subprocess.run(["cc", "-O1", "-Wall", "-Werror", source, "-o", program, "-ldl"], check=True)
    return program


@pytest.fixture(scope="session")
def _vm(
    host: Path, image: GuestImage, repo: Path, linger: Path, pinned: Path, wakeup: Path
) -> Iterator[Vm]:
    payload = [path for path in (repo, linger, pinned, wakeup, PROGRAM) if path.exists()]
    with Vm("kvgpu-test", image, payload) as vm:
        vm.start()
        vm.check(install_command("/payload/repo", "kvgpu-guest"), timeout_s=120)
        yield vm


@pytest.fixture
def vm(_vm: Vm) -> Vm:
    """A running VM with the package installed and no CUDA process."""
    if virsh("domstate", _vm.name).strip() != "running":
        _vm.start()
    _vm.run("pkill -KILL linger")
    return _vm
