# SPDX-License-Identifier: Apache-2.0
"""The command `kvgpu`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID, uuid4

import typer
from rich.console import Console
from rich.table import Table

from kvgpu.host import check as host_check
from kvgpu.host import paths, run_command
from kvgpu.host.client import ApiClient
from kvgpu.host.errors import ConfigError, DaemonError, KvgpuError
from kvgpu.host.messages import (
    HostStatusRequest,
    Request,
    RunRequest,
    SessionKillRequest,
    SessionListRequest,
    VmListRequest,
)
from kvgpu.host.units import format_size, parse_size

app = typer.Typer(
    help="CUDA for KVM virtual machines.", no_args_is_help=True, pretty_exceptions_enable=False
)
host_app = typer.Typer(help="This host.", no_args_is_help=True)
session_app = typer.Typer(help="Processes that compute.", no_args_is_help=True)
vm_app = typer.Typer(help="Virtual machines.", no_args_is_help=True)
app.add_typer(host_app, name="host")
app.add_typer(session_app, name="session")
app.add_typer(vm_app, name="vm")

_RuntimeDir = Annotated[
    Path, typer.Option(envvar="KVGPU_RUNTIME_DIR", help="Where kvgpud's socket is.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(help="The program and its arguments.")],
    pinned: Annotated[str, typer.Option(help="Pinned memory it may take.")] = "1GiB",
    driver: Annotated[
        str,
        typer.Option(help="auto, nvidia, software or a path; starts a private kvgpud."),
    ] = "",
    log: Annotated[Path | None, typer.Option(help="Log of a private kvgpud.")] = None,
    no_jail: Annotated[
        bool, typer.Option("--no-jail", help="No namespaces; starts a private kvgpud.")
    ] = False,
    transport: Annotated[
        str,
        typer.Option(
            envvar="KVGPU_TRANSPORT",
            help="shared, or stream: as in a VM that shares no memory with its host (slow).",
        ),
    ] = "shared",
    runtime_dir: _RuntimeDir = paths.RUNTIME_DIR,
) -> None:
    """Run a program of this host on the GPUs kvgpud serves, without a VM."""
    private: run_command.Private | None = None
    if driver or no_jail or not run_command.answers(runtime_dir):
        private = run_command.Private(driver or "auto", no_jail, log)
    request = RunRequest(parse_size(pinned), transport)
    raise typer.Exit(run_command.run(command, runtime_dir, request, private))


@app.command()
def check(runtime_dir: _RuntimeDir = paths.RUNTIME_DIR, as_json: _Json = False) -> None:
    """Look whether this host is ready for VMs; say what to do where it is not."""
    findings = host_check.run_checks(runtime_dir)
    if as_json:
        _print_json([asdict(finding) for finding in findings])
    else:
        colours = {"ok": "green", "warning": "yellow", "failed": "red"}
        for finding in findings:
            colour = colours[finding.state]
            _console.print(
                f"[{colour}]{finding.state:8}[/{colour}]{finding.what}: {finding.detail}"
            )
            if finding.to_do:
                _console.print(f"        to do: {finding.to_do}", highlight=False)
        _console.print(f"note    {host_check.TRUST_NOTE}")
    raise typer.Exit(1 if any(finding.state == "failed" for finding in findings) else 0)


@host_app.command("status")
def host_status(runtime_dir: _RuntimeDir = paths.RUNTIME_DIR, as_json: _Json = False) -> None:
    """Show kvgpud, its driver and its devices."""
    status = _ask(runtime_dir, HostStatusRequest())
    if as_json:
        _print_json(status)
        return
    _console.print(f"kvgpud {status['version']}, pid {status['pid']}")
    _console.print(f"driver {status['driver'] or status['inventory_error']}")
    for device in status["inventory"].get("devices", []):
        size = format_size(device.get("total_bytes", 0))
        _console.print(f"device {device.get('pci_bus_id', '?')}: {device.get('name', '?')}, {size}")
    _console.print(f"{status['n_vms']} VM(s), {status['n_sessions']} session(s)")


@session_app.command("list")
def session_list(runtime_dir: _RuntimeDir = paths.RUNTIME_DIR, as_json: _Json = False) -> None:
    """List the processes that have a session."""
    sessions = _ask(runtime_dir, SessionListRequest())["sessions"]
    if as_json:
        _print_json(sessions)
        return
    columns = ("session", "vm", "pid", "uid", "comm", "worker", "state", "since", "pinned")
    rows = [
        (
            *(s["session"], s["vm"], s["pid"], s["uid"], s["comm"], s["worker_pid"], s["state"]),
            time.strftime("%F %T", time.localtime(s["started_at_s"])),
            format_size(s["pinned_bytes"]),
        )
        for s in sessions
    ]
    _print_table(columns, rows)


@session_app.command("show")
def session_show(session: int, runtime_dir: _RuntimeDir = paths.RUNTIME_DIR) -> None:
    """Show all about one session, as JSON."""
    for info in _ask(runtime_dir, SessionListRequest())["sessions"]:
        if info["session"] == session:
            _print_json(info)
            return
    raise ConfigError(f"no session {session}", hint="see `kvgpu session list`")


@session_app.command("kill")
def session_kill(
    session: Annotated[int | None, typer.Argument(help="Its number.")] = None,
    runtime_dir: _RuntimeDir = paths.RUNTIME_DIR,
    every: Annotated[bool, typer.Option("--all", help="All sessions of this host.")] = False,
) -> None:
    """End a session; its process gets CUDA_ERROR_NOT_PERMITTED."""
    if every == (session is not None):
        raise ConfigError("which session?", hint="give its number, or --all")
    if session is not None:
        _ask(runtime_dir, SessionKillRequest(session))
        return
    for info in _ask(runtime_dir, SessionListRequest())["sessions"]:
        with contextlib.suppress(DaemonError):  # it has ended meanwhile
            _ask(runtime_dir, SessionKillRequest(info["session"]))


@vm_app.command("list")
def vm_list(runtime_dir: _RuntimeDir = paths.RUNTIME_DIR, as_json: _Json = False) -> None:
    """List the running VMs that have slices."""
    vms = _ask(runtime_dir, VmListRequest())["vms"]
    if as_json:
        _print_json(vms)
        return
    columns = ("vm", "state", "memory*", "compute*", "pinned", "sessions", "uuid")
    rows = [
        (
            *(vm["name"], vm["state"], format_size(vm["memory_bytes"])),
            *(f"{vm['compute_percent']} %", format_size(vm["pinned_bytes"])),
            *(vm["n_sessions"], vm["uuid"]),
        )
        for vm in vms
    ]
    _print_table(columns, rows)
    _console.print("* not enforced yet")


@vm_app.command("xml")
def vm_xml(
    name: Annotated[str, typer.Argument(help="The VM's name.")] = "",
    memory: Annotated[str, typer.Option(help="GPU memory (not enforced yet).")] = "",
    compute: Annotated[int, typer.Option(help="Percent of GPU time (not enforced yet).")] = 100,
    pinned: Annotated[
        str, typer.Option(help="Pinned memory; default a quarter of --ram, at least 1 GiB.")
    ] = "",
    vcpus: Annotated[int, typer.Option(min=1)] = 2,
    ram: Annotated[str, typer.Option(help="The VM's memory.")] = "4GiB",
    disk: Annotated[str, typer.Option(help="PATH or PATH:FORMAT (raw, qcow2).")] = "",
    kernel: Annotated[str, typer.Option(help="Boot this kernel, not the disk.")] = "",
    initrd: str = "",
    cmdline: str = "",
    kvm: Annotated[
        bool | None, typer.Option(help="Default: KVM where the processor has it.")
    ] = None,
    uuid: Annotated[str, typer.Option(help="Default: a new one.")] = "",
    serial_log: Annotated[str, typer.Option(help="Keep the serial console in this file.")] = "",
    network: Annotated[
        str, typer.Option(help="user (NAT by QEMU), none, or a libvirt network's name.")
    ] = "user",
    shmem: Annotated[
        bool,
        typer.Option(help="The ivshmem device; without it the VM is served over its port, slowly."),
    ] = True,
    extend: Annotated[
        Path | None,
        typer.Option("--from", help="Add kvgpu to this domain XML instead (- reads stdin)."),
    ] = None,
    runtime_dir: _RuntimeDir = paths.RUNTIME_DIR,
) -> None:
    """Print a domain that has slices of this host's GPUs, for `virsh define /dev/stdin`."""
    # lxml only here: the other commands, `kvgpu run` above all, start quicker without it.
    from kvgpu.host import domain_xml

    if not memory:
        raise ConfigError("--memory is missing", hint="for example --memory 8GiB")
    ram_bytes = parse_size(ram)
    pinned_bytes = parse_size(pinned) if pinned else domain_xml.default_pinned_bytes(ram_bytes)
    slices = domain_xml.Slices(parse_size(memory), compute, pinned_bytes)
    if extend:
        text = sys.stdin.read() if str(extend) == "-" else extend.read_text()
        sys.stdout.write(domain_xml.extend_domain(text, slices, str(runtime_dir), shmem))
        return
    if not name:
        raise ConfigError("NAME is missing", hint="kvgpu vm xml NAME --memory 8GiB ...")
    path, disk_format = _split_disk(disk)
    machine = domain_xml.Machine(
        name=name,
        uuid=_parse_uuid(uuid),
        ram_bytes=ram_bytes,
        n_vcpus=vcpus,
        kvm=host_check.has_kvm() if kvm is None else kvm,
        disk=path,
        disk_format=disk_format,
        kernel=os.path.abspath(kernel) if kernel else "",
        initrd=os.path.abspath(initrd) if initrd else "",
        cmdline=cmdline,
        serial_log=os.path.abspath(serial_log) if serial_log else "",
        network=network,
    )
    sys.stdout.write(domain_xml.make_domain(machine, slices, str(runtime_dir), shmem))


# Nothing is cut where a program reads: a pipe has no width.
_console = Console(soft_wrap=True, width=None if sys.stdout.isatty() else 400)


def _split_disk(disk: str) -> tuple[str, str]:
    path, colon, disk_format = disk.rpartition(":")
    if not colon:
        path, disk_format = disk, "raw" if disk.endswith((".img", ".raw")) else "qcow2"
    return (os.path.abspath(path) if path else "", disk_format)


def _parse_uuid(text: str) -> UUID:
    try:
        return UUID(text) if text else uuid4()
    except ValueError as error:
        raise ConfigError(
            f"{text!r} is not a UUID", hint="leave --uuid out for a new one"
        ) from error


def _ask(runtime_dir: Path, request: Request) -> dict[str, Any]:
    with ApiClient(runtime_dir) as api:
        reply = api.ask(request)
    reply.pop("ok")
    return reply


def _print_json(value: object) -> None:
    json.dump(value, sys.stdout, indent=2)
    print()


def _print_table(columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*map(str, row))
    _console.print(table)


def main() -> None:
    """Run the command; an error is one line on standard error and status 1."""
    try:
        app()
    except (KvgpuError, OSError) as error:
        print(f"kvgpu: {error}", file=sys.stderr)
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
