# SPDX-License-Identifier: Apache-2.0
"""`kvgpu session`: the processes that compute."""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from kvgpu.host import paths
from kvgpu.host.cli_output import Json, RuntimeDir, ask, print_fields, print_json, print_table
from kvgpu.host.client import end_session
from kvgpu.host.errors import ConfigError
from kvgpu.host.messages import (
    HostStatusRequest,
    SessionKillRequest,
    SessionListRequest,
    SessionShowRequest,
)
from kvgpu.host.units import format_size

app = typer.Typer(help="Processes that compute.", no_args_is_help=True)


@app.command("list")
def session_list(runtime_dir: RuntimeDir = paths.RUNTIME_DIR, as_json: Json = False) -> None:
    """List the processes that have a session."""
    sessions = ask(runtime_dir, SessionListRequest())["sessions"]
    if as_json:
        print_json(sessions)
        return
    columns = ("session", "vm", "pid", "uid", "comm", "worker", "state", "since", "pinned")
    rows = [
        (
            *(s["session"], s["vm"], s["pid"], s["uid"], s["comm"], s["worker_pid"], s["state"]),
            _local_time(s["started_at_s"]),
            format_size(s["pinned_bytes"]),
        )
        for s in sessions
    ]
    print_table(columns, rows)


@app.command("show")
def session_show(
    session: int, runtime_dir: RuntimeDir = paths.RUNTIME_DIR, as_json: Json = False
) -> None:
    """Show all about one session: whose it is, its memory, its calls and the last that failed."""
    info = ask(runtime_dir, SessionShowRequest(session))["session"]
    if as_json:
        print_json(info)
        return
    activity = info.pop("activity")
    age_s = int(time.time() - info["started_at_s"])
    info["started_at_s"] = f"{_local_time(info['started_at_s'])}, {age_s} s ago"
    info["pinned_bytes"] = format_size(info["pinned_bytes"])
    if activity is None:
        print_fields(info | {"activity": "not known: the worker does not answer"})
        return
    print_fields(info | _activity_fields(activity))
    print_table(("call", "n"), list(activity["calls"].items()))


@app.command("logs")
def session_logs(
    session: int, runtime_dir: RuntimeDir = paths.RUNTIME_DIR, as_json: Json = False
) -> None:
    """Print the log of a session, of one that has ended, too."""
    info = _find(runtime_dir, session)
    folder = Path(ask(runtime_dir, HostStatusRequest())["log_dir"])
    path = Path(info["log"]) if info else folder / f"session-{session}.log"
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError as error:
        raise ConfigError(
            f"no log of session {session} in {folder}",
            hint="kvgpud keeps those of the last sessions only; see `kvgpu session list`",
        ) from error
    if as_json:
        print_json({"session": session, "log": str(path), "lines": text.splitlines()})
    else:
        sys.stdout.write(text)


@app.command("kill")
def session_kill(
    session: Annotated[int | None, typer.Argument(help="Its number.")] = None,
    runtime_dir: RuntimeDir = paths.RUNTIME_DIR,
    every: Annotated[bool, typer.Option("--all", help="All sessions of this host.")] = False,
    as_json: Json = False,
) -> None:
    """End a session; its process gets CUDA_ERROR_NOT_PERMITTED."""
    if every == (session is not None):
        raise ConfigError("which session?", hint="give its number, or --all")
    killed = []
    if session is not None:
        ask(runtime_dir, SessionKillRequest(session))
        killed.append(session)
    else:
        for info in ask(runtime_dir, SessionListRequest())["sessions"]:
            if end_session(partial(ask, runtime_dir), info["session"]):
                killed.append(info["session"])
    if as_json:
        print_json({"killed": killed})


def _activity_fields(activity: dict[str, Any]) -> dict[str, str]:
    fields = {}
    for device in activity["devices"]:
        own, free, total = (format_size(device[f"{of}_bytes"]) for of in ("own", "free", "total"))
        use = f"{own}, {free} of {total} free" if device["total_bytes"] else "not used"
        fields[f"device {device['device']}"] = use
    now, peak = (format_size(activity[f"{of}memory_bytes"]) for of in ("", "peak_"))
    fields["memory"] = f"{now}, at most {peak}"
    fields["calls"] = f"{activity['n_calls']}, {activity['n_failed']} failed"
    last = activity["last_error"]
    fields["last error"] = (
        f"{last['call']}: {last['name']} ({last['result']}), {_local_time(last['at_s'])}"
        if last
        else "none"
    )
    return fields


def _local_time(unix_s: float) -> str:
    return time.strftime("%F %T", time.localtime(unix_s))


def _find(runtime_dir: Path, session: int) -> dict[str, Any] | None:
    sessions: list[dict[str, Any]] = ask(runtime_dir, SessionListRequest())["sessions"]
    return next((info for info in sessions if info["session"] == session), None)
