# SPDX-License-Identifier: Apache-2.0
"""The command `kvgpu`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from kvgpu.host import cli_session, cli_vm, paths, run_command
from kvgpu.host.cli_output import (
    Json,
    RuntimeDir,
    ask,
    console,
    print_findings,
    print_json,
    print_table,
)
from kvgpu.host.errors import DaemonError, KvgpuError
from kvgpu.host.messages import HostStatusRequest, RunRequest
from kvgpu.host.units import format_size, parse_size

app = typer.Typer(
    help="CUDA for KVM virtual machines.", no_args_is_help=True, pretty_exceptions_enable=False
)
host_app = typer.Typer(help="This host.", no_args_is_help=True)
gpu_app = typer.Typer(help="The host's GPUs.", no_args_is_help=True)
app.add_typer(host_app, name="host")
app.add_typer(gpu_app, name="gpu")
app.add_typer(cli_session.app, name="session")
app.add_typer(cli_vm.app, name="vm")


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
    runtime_dir: RuntimeDir = paths.RUNTIME_DIR,
) -> None:
    """Run a program of this host on the GPUs kvgpud serves, without a VM."""
    private: run_command.Private | None = None
    if driver or no_jail or not run_command.answers(runtime_dir):
        private = run_command.Private(driver or "auto", no_jail, log)
    request = RunRequest(parse_size(pinned), transport)
    raise typer.Exit(run_command.run(command, runtime_dir, request, private))


@app.command()
def check(runtime_dir: RuntimeDir = paths.RUNTIME_DIR, as_json: Json = False) -> None:
    """Look whether this host is ready for VMs; say what to do where it is not."""
    from kvgpu.host import check as host_check

    if not as_json:
        console.print(f"note    {host_check.TRUST_NOTE}")
    print_findings(host_check.run_checks(runtime_dir), as_json)


@host_app.command("status")
def host_status(runtime_dir: RuntimeDir = paths.RUNTIME_DIR, as_json: Json = False) -> None:
    """Show kvgpud, its driver and its devices."""
    status = ask(runtime_dir, HostStatusRequest())
    if as_json:
        print_json(status)
        return
    console.print(f"kvgpud {status['version']}, pid {status['pid']}")
    console.print(f"driver {status['driver'] or status['inventory_error']}")
    for device in status["inventory"].get("devices", []):
        size = format_size(device.get("total_bytes", 0))
        console.print(f"device {device.get('pci_bus_id', '?')}: {device.get('name', '?')}, {size}")
    console.print(f"{status['n_vms']} VM(s), {status['n_sessions']} session(s)")


@gpu_app.command("list")
def gpu_list(runtime_dir: RuntimeDir = paths.RUNTIME_DIR, as_json: Json = False) -> None:
    """List the GPUs that kvgpud serves."""
    status = ask(runtime_dir, HostStatusRequest())
    if status["inventory_error"]:
        raise DaemonError(status["inventory_error"], hint="mend the driver; kvgpud looks again")
    devices: list[dict[str, Any]] = status["inventory"].get("devices", [])
    if as_json:
        print_json(devices)
        return
    rows = [
        (
            *(i, device["name"], format_size(device["total_bytes"])),
            *(device["compute_capability"], device["pci_bus_id"], UUID(device["uuid"])),
        )
        for i, device in enumerate(devices)
    ]
    print_table(("gpu", "name", "memory", "compute cap", "pci", "uuid"), rows)


def main() -> None:
    """Run the command; an error is one line on standard error and status 1."""
    try:
        app()
    except (KvgpuError, OSError) as error:
        print(f"kvgpu: {error}", file=sys.stderr)
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
