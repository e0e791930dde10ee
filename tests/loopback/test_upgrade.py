# SPDX-License-Identifier: Apache-2.0
"""kvgpud replaced by that of the next release, and back, while programs compute."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

from framework.life import sessions, start_steady
from framework.loopback import PROGRAMS, ROOT, Loopback, loopback

import kvgpu
from kvgpu.host.client import ApiClient
from kvgpu.host.control_frames import PROTOCOL_MINOR
from kvgpu.host.messages import HostStatusRequest

NEXT = "99.0.0"
# What the next release may change: its version, a newer minor one of the protocol, and what it
# keeps of a session.
CHANGES = {
    "__init__.py": (f'__version__ = "{kvgpu.__version__}"', f'__version__ = "{NEXT}"'),
    "host/control_frames.py": (
        f"PROTOCOL_MINOR = {PROTOCOL_MINOR}",
        f"PROTOCOL_MINOR = {PROTOCOL_MINOR + 1}",
    ),
    "host/session_store.py": ("    is_ready: bool\n", "    is_ready: bool\n    newer: int = 1\n"),
}


def next_release(folder: Path) -> Path:
    """Write the Python part of the next release; return what to put into PYTHONPATH."""
    ignored = shutil.ignore_patterns("*.cpp", "*.h", "__pycache__")
    shutil.copytree(ROOT / "packaging" / "python", folder, ignore=ignored)
    for name, (old, new) in CHANGES.items():
        path = folder / "kvgpu" / name
        text = path.read_text()
        assert text.count(old) == 1, name
        path.write_text(text.replace(old, new))
    return folder


def replace_kvgpud(host: Loopback, tree: Path) -> None:
    """Stop kvgpud as `systemctl restart` does, and start that of another source tree."""
    host.stop_kvgpud(signal.SIGTERM)
    host.environment["PYTHONPATH"] = str(tree)
    host.start_kvgpud()


def version(host: Loopback) -> str:
    with ApiClient(host.runtime_dir) as api:
        return str(api.ask(HostStatusRequest())["version"])


def test_upgrade_of_kvgpud_and_back_is_not_noticed(tmp_path: Path) -> None:
    newer, ours = next_release(tmp_path / "next"), ROOT / "packaging" / "python"
    with loopback() as host:
        programs = [start_steady(host, 30)]
        before = sessions(host)
        replace_kvgpud(host, newer)
        assert version(host) == NEXT
        assert sessions(host) == before, "the session goes on, with the same worker"
        programs.append(start_steady(host, 20))  # of which the next release keeps more
        before = sessions(host)
        assert len(before) == 2
        replace_kvgpud(host, ours)
        assert version(host) == kvgpu.__version__
        assert all(process.poll() is None for process in programs), "this took too long to tell"
        assert sessions(host) == before
        host.check(PROGRAMS / "demo")
        for process in programs:
            output, errors = process.communicate(timeout=60)
            assert process.returncode == 0, output + errors + host.logs()
            assert output.splitlines()[-1] == "steady: all results correct"
