# SPDX-License-Identifier: Apache-2.0
"""NVML in a guest: unmodified nvidia-ml-py, and kvgpu-smi, see the slice and nothing else."""

from __future__ import annotations

import ctypes
import inspect
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
from framework.loopback import BUILD, LOOPBACK, ROOT, Loopback, loopback
from framework.nvml_program import ALLOCATED_BYTES

from kvgpu.host.client import ApiClient
from kvgpu.host.messages import RunRequest, SessionListRequest

PROGRAM = ROOT / "tests/framework/nvml_program.py"
SMI = BUILD / "guest/smi/kvgpu-smi"
INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED = 2, 3, 4, 9  # nvml.h


def see(host: Loopback, *options: str, **variables: str) -> dict[str, Any]:
    seen: dict[str, Any] = json.loads(host.check(sys.executable, PROGRAM, *options, **variables))
    return seen


@pytest.fixture(scope="module")
def with_nvml() -> Iterator[Loopback]:
    """A host whose driver has an NVML beside it (stand_in_nvml.cpp)."""
    with loopback(driver=str(LOOPBACK / "with_nvml/libcuda.so.1")) as running:
        yield running


def test_identity_and_memory_are_cudas(host: Loopback) -> None:
    seen = see(host, "compute")
    cuda, nvml = seen["cuda"], seen["nvml"]
    assert nvml["uuid"].removeprefix("GPU-").replace("-", "") == cuda["uuid"]
    assert nvml["pci_bus_id"].lower() == "0000" + cuda["pci_bus_id"].lower()
    memory = nvml["memory"]
    assert memory["total"] == cuda["total"] == cuda["device_total"]
    assert memory["free"] == cuda["free"]
    assert memory["used"] == memory["total"] - memory["free"]
    assert nvml["processes"] == [[seen["pid"], ALLOCATED_BYTES]]
    assert (nvml["n_devices"], nvml["name"]) == (1, "kvgpu software GPU")
    assert nvml["cuda"] == 13000


def test_what_the_host_does_not_know_is_not_invented(host: Loopback) -> None:
    nvml = see(host)["nvml"]
    for what in ("driver", "temperature", "power", "sm_clock", "load", "serial"):
        assert nvml[what] == {"error": NOT_SUPPORTED}, what
    assert nvml["set_power"] == {"error": NO_PERMISSION}
    assert nvml["processes"] == []
    assert nvml["memory"]["used"] == 0


def test_looking_makes_no_session(host: Loopback) -> None:
    logs = sorted((host.runtime_dir / "log").glob("session-*"))
    see(host)
    with ApiClient(host.runtime_dir) as api:
        assert api.ask(SessionListRequest())["sessions"] == []
    assert sorted((host.runtime_dir / "log").glob("session-*")) == logs


def test_own_limits_hold_in_nvml_as_in_cuda(host: Loopback) -> None:
    seen = see(host, "compute", KVGPU_MEMORY_MIB="512")
    memory, cuda = seen["nvml"]["memory"], seen["cuda"]
    assert memory["total"] == cuda["total"] == 512 << 20
    assert memory["free"] == cuda["free"] == (512 << 20) - ALLOCATED_BYTES


def test_others_are_not_seen(with_nvml: Loopback) -> None:
    """Neither another run's process and memory, nor what NVML says of the whole device."""
    other = with_nvml.start(sys.executable, PROGRAM, "compute", "wait")
    try:
        assert other.stdout
        theirs = json.loads(other.stdout.readline())
        assert theirs["nvml"]["processes"] == [[theirs["pid"], 700 << 20]]
        assert theirs["nvml"]["load"] == {"gpu": 30, "memory": 10}
        nvml = see(with_nvml)["nvml"]
    finally:
        other.terminate()
        other.communicate()
    assert nvml["processes"] == []
    assert nvml["load"] == {"gpu": 0, "memory": 0}
    assert nvml["memory"]["used"] == 0


def test_readings_of_the_physical_device_are_passed_on(with_nvml: Loopback) -> None:
    nvml = see(with_nvml)["nvml"]
    assert nvml["driver"] == "580.1.2"
    assert (nvml["temperature"], nvml["power"], nvml["sm_clock"]) == (41, 123456, 1001)
    # What the whole card takes is not what its module or its memory takes.
    assert nvml["power_by_scope"] == [123456, {"error": NOT_SUPPORTED}, {"error": NOT_SUPPORTED}]
    assert nvml["reasons"] == 1 << 40
    assert nvml["serial"] == {"error": NOT_SUPPORTED}


def test_every_question_of_pynvml_is_answered_or_refused(with_nvml: Loopback) -> None:
    errors = see(with_nvml, "every")["every"]
    assert len(errors) > 100
    assert set(errors.values()) == {0, NOT_SUPPORTED}, errors
    library = ctypes.CDLL(str(BUILD / "guest/libcuda/libnvidia-ml.so.1"))
    names = re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', inspect.getsource(pynvml))
    assert [name for name in names if not hasattr(library, name)] == []


def test_links_and_ways_between_the_slices_own_devices() -> None:
    driver = str(LOOPBACK / "with_nvml/libcuda.so.1")
    with loopback(driver=driver, KVGPU_SOFTWARE_GPU_DEVICES="2") as host:
        ways = see(host, "ways")["ways"]
        alone = see(host, "ways", KVGPU_DEVICES="1")["ways"]
    to_switch, also, to_device, down, *none = ways["links"]
    up = {"active": 1, "state": 1, "mbps": 26562, "version": 6, "p2p": 1}
    assert to_switch == {**up, "kind": 2, "remote": "FFFFFFFF:FF:FF.0"}
    assert also == {**to_switch, "state": 2}  # it sleeps
    assert to_device == {**up, "kind": 0, "remote": ways["other"]}
    assert (down["active"], down["state"], down["mbps"]) == (0, 0, 0)
    beyond = {what: answer["error"] for what, answer in ways["beyond"].items()}
    fields = {"state": NOT_SUPPORTED, "mbps": NOT_SUPPORTED}
    assert beyond == dict.fromkeys(beyond, INVALID_ARGUMENT) | fields
    assert ways["n_links"] == [4, 3]  # of them to a switch
    assert ways["p2p"] == [0, 0, 0, 0, 1]
    assert ways["ancestors"] == [40, {"error": NOT_SUPPORTED}]
    assert ways["smi_way"] == 3  # NODE
    assert len(none) == 14
    online = Path("/sys/devices/system/cpu/online").read_text().strip()
    n_processors = int(online.rpartition("-")[2]) + 1
    assert (
        sum(word << 64 * i for i, word in enumerate(ways["processors"])) == (1 << n_processors) - 1
    )
    assert ways["nodes"] == [1]
    for link in (*none, *alone["links"]):  # a device alone has nobody to reach
        assert all(answer == {"error": NOT_SUPPORTED} for answer in link.values()), link


def test_agent_passes_questions_on(host: Loopback) -> None:
    """As in a VM: the library asks kvgpu-agentd, that asks kvgpud through its port."""
    with ApiClient(host.runtime_dir) as api:
        run = api.ask(RunRequest(64 << 20, transport="stream"))["socket"]
        environment = {
            **host.environment,
            "LD_LIBRARY_PATH": host.environment["KVGPU_LIBCUDA_DIR"],
            "KVGPU_SOCKET": run,
        }
        command = [sys.executable, str(PROGRAM), "compute"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["nvml"]["processes"] == [[seen["pid"], ALLOCATED_BYTES]]
    assert seen["nvml"]["memory"]["free"] == seen["cuda"]["free"]


def test_kvgpu_smi(with_nvml: Loopback) -> None:
    table = with_nvml.check(SMI)
    assert "kvgpu software GPU" in table
    assert "0 / 4096" in table
    assert "41C" in table
    assert "(none)" in table
    names = with_nvml.check(SMI, "-L")
    assert names == "GPU 0: kvgpu software GPU (UUID: GPU-6b766770-752d-736f-6674-776172650000)\n"
    (device,) = json.loads(with_nvml.check(SMI, "--json"))["devices"]
    assert (device["temperature_c"], device["power_mw"]) == (41, 123456)
    assert (device["gpu_percent"], device["processes"]) == (0, [])


def run_alone(path: Path) -> subprocess.CompletedProcess[str]:
    """Run kvgpu-smi against whoever listens at `path`."""
    environment = {"LD_LIBRARY_PATH": str(BUILD / "guest/libcuda"), "KVGPU_SOCKET": str(path)}
    return subprocess.run(
        [str(SMI)], env={**os.environ, **environment}, capture_output=True, text=True, timeout=30
    )


def test_without_an_agent_it_is_said_what_to_do(tmp_path: Path) -> None:
    done = run_alone(tmp_path / "none.sock")
    assert done.returncode == 1
    assert "cannot reach" in done.stderr
    assert "kvgpu-agentd?" in done.stderr
    assert "Driver Not Loaded" in done.stderr


def test_older_host_that_hangs_up_is_told(tmp_path: Path) -> None:
    """What kvgpud and the agent did with a frame that they do not know."""
    path = tmp_path / "old.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            connection.recv(8192)
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        done = run_alone(path)
        thread.join()
    assert done.returncode == 1
    assert "Upgrade kvgpu-host" in done.stderr
    assert "Not Supported" in done.stderr
