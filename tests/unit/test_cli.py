# SPDX-License-Identifier: Apache-2.0
"""The command `kvgpu` as a user calls it, with a private kvgpud and a fake worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from framework.waiting import wait_for_listener

ROOT = Path(__file__).parents[2]
CLIENT = """
import os, socket, struct, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect(os.environ["KVGPU_SOCKET"])
body = struct.pack("<HHIQII16s", 0, 1, 0, 0x300000000000, 0, 0, b"client")
sock.send(struct.pack("<IHHII", 0x4347564B, 4, 0, len(body), 1) + body)
print("type", struct.unpack_from("<IH", sock.recv(8192))[1])
"""


@pytest.fixture
def environment(fake_worker: Path, tmp_path: Path) -> dict[str, str]:
    libcuda_dir = tmp_path / "libcuda"
    libcuda_dir.mkdir()
    (libcuda_dir / "libcuda.so.1").write_bytes(b"")
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT / "packaging/python"),
        "KVGPU_LIBCUDA_DIR": str(libcuda_dir),
        "KVGPU_RUNTIME_DIR": str(tmp_path / "none"),
        "LD_LIBRARY_PATH": "/earlier",
    }


def kvgpu(
    environment: dict[str, str], *arguments: str, timeout_s: float = 30
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "kvgpu.host.cli", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def test_run_gives_the_program_a_session_and_its_own_status(environment: dict[str, str]) -> None:
    result = kvgpu(
        *(environment, "run", "--driver", "software", "--", sys.executable, "-c"),
        CLIENT + "sys.exit(7)",
    )
    assert (result.stdout, result.returncode) == ("type 5\n", 7), result.stderr


def test_run_puts_our_library_first(environment: dict[str, str]) -> None:
    result = kvgpu(
        *(environment, "run", "--driver", "software", "sh", "-c", "echo $LD_LIBRARY_PATH")
    )
    assert result.stdout == f"{environment['KVGPU_LIBCUDA_DIR']}:/earlier\n"


def test_run_reports_a_signal_as_the_shell_does(environment: dict[str, str]) -> None:
    result = kvgpu(environment, "run", "--driver", "software", "--", "sh", "-c", "kill -9 $$")
    assert result.returncode == 128 + signal.SIGKILL


def test_run_of_an_unknown_command_says_so(environment: dict[str, str]) -> None:
    result = kvgpu(environment, "run", "--driver", "software", "--", "no-such-command")
    assert result.returncode == 1
    assert result.stderr == (
        "kvgpu: no-such-command: no such command (kvgpu run -- PROGRAM ARGUMENTS)\n"
    )


def test_run_passes_signals_on(environment: dict[str, str]) -> None:
    script = "trap 'echo got; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    process = subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "kvgpu.host.cli", "run", "--driver", "software", "--"),
            *("sh", "-c", script),
        ],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    output, _ = process.communicate(timeout=20)
    assert (output, process.returncode) == ("got\n", 3)


def test_private_kvgpud_ends_even_if_kvgpu_run_is_killed(
    environment: dict[str, str], tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "kvgpu.host.cli", "run", "--driver", "software"),
            *("--log", str(tmp_path / "log"), "--", "sh", "-c", "echo ready; exec sleep 30"),
        ],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    (kvgpud,) = [
        int(pid)
        for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        if b"kvgpu.host.kvgpud" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    process.kill()
    process.wait()
    process.stdout.close()
    deadline_s = time.monotonic() + 5
    while Path(f"/proc/{kvgpud}").exists() and "Z" not in _state(kvgpud):
        assert time.monotonic() < deadline_s, "kvgpud was left"
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)  # the sleep


def test_kvgpud_for_one_command_keeps_its_logs_in_its_folder(
    environment: dict[str, str], tmp_path: Path
) -> None:
    config = tmp_path / "host.toml"
    config.write_text(f'log_dir = "{tmp_path}/elsewhere"\n')
    process = subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "kvgpu.host.kvgpud", "--driver", "software"),
            *("--runtime-dir", str(tmp_path / "run"), "--config", str(config), "--until-eof"),
        ],
        env=environment,
        stdin=subprocess.PIPE,
    )
    wait_for_listener(tmp_path / "run/kvgpud.sock", process)
    status = kvgpu(environment, "host", "status", "--json", "--runtime-dir", str(tmp_path / "run"))
    process.communicate(timeout=20)
    assert json.loads(status.stdout)["log_dir"] == str(tmp_path / "run/log")
    assert not (tmp_path / "elsewhere").exists()


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return "Z"


def test_commands_without_kvgpud_fail_with_what_to_do(environment: dict[str, str]) -> None:
    for command in (("host", "status"), ("session", "list"), ("vm", "list")):
        result = kvgpu(environment, *command)
        assert result.returncode == 1
        assert "start kvgpud" in result.stderr
        assert "Traceback" not in result.stderr


def test_vm_xml_prints_a_domain(environment: dict[str, str]) -> None:
    result = kvgpu(
        *(environment, "vm", "xml", "vm1", "--memory", "8GiB", "--compute", "25"),
        *("--no-kvm", "--disk", "/x/y:raw", "--ram", "1GiB"),
    )
    assert result.returncode == 0, result.stderr
    assert '<domain type="qemu">' in result.stdout
    assert '<source file="/x/y"/>' in result.stdout
    again = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "kvgpu.host.cli", "vm", "xml", "--from", "-"),
            *("--memory", "4GiB"),
        ],
        input=result.stdout,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert "4096</kvgpu:memory>" in again.stdout


def test_check_names_each_failure_with_what_to_do(environment: dict[str, str]) -> None:
    result = kvgpu(environment, "check", "--json")
    assert result.returncode == 1
    findings = {finding["what"]: finding for finding in json.loads(result.stdout)}
    assert findings["kvgpud"]["state"] == "failed"
    assert all(f["to_do"] for f in findings.values() if f["state"] != "ok")
    assert "share a host" in kvgpu(environment, "check").stdout
