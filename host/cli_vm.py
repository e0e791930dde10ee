# SPDX-License-Identifier: Apache-2.0
"""`kvgpu vm`: virtual machines."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvgpu.host import cli_vm_options as options
from kvgpu.host import libvirt_domains, paths
from kvgpu.host.cli_output import (
    Json,
    RuntimeDir,
    ask,
    console,
    print_fields,
    print_findings,
    print_json,
    print_table,
)
from kvgpu.host.errors import ConfigError, KvgpuError
from kvgpu.host.libvirt_domains import SYSTEM, Domain
from kvgpu.host.messages import SessionListRequest, VmInfo, VmListRequest
from kvgpu.host.units import format_size, parse_size

if TYPE_CHECKING:
    from kvgpu.host.hot_plug import HotPlug

app = typer.Typer(help="Virtual machines.", no_args_is_help=True)
_Memory = Annotated[str, typer.Option(help="GPU memory (not enforced yet).")]
_Compute = Annotated[int, typer.Option(help="Percent of GPU time (not enforced yet).")]
_Shmem = Annotated[
    bool,
    typer.Option(help="The ivshmem device; without it the VM is served over its port, slowly."),
]
_Doorbell = Annotated[
    bool,
    typer.Option(
        "--doorbell", help="The device with a doorbell: programs wake their worker themselves."
    ),
]
_Strict = Annotated[bool, typer.Option("--strict", help="Refuse what is not enforced yet.")]
_Connect = Annotated[
    str, typer.Option(envvar="LIBVIRT_DEFAULT_URI", help="libvirt's URI.", show_default=True)
]
_Domain = Annotated[str, typer.Argument(help="A domain's name or UUID.")]
_DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what would change, change nothing.")
]
_Live = Annotated[
    bool, typer.Option("--live", help="In the running domain, too, and at once (machine type pc).")
]
_NOT_ENFORCED = "GPU memory and compute shares are stored, and not enforced yet"


@app.command("list")
def vm_list(
    runtime_dir: RuntimeDir = paths.RUNTIME_DIR,
    as_json: Json = False,
    every: Annotated[
        bool, typer.Option("--all", help="Those that libvirt keeps and that do not run, too.")
    ] = False,
    connect: _Connect = SYSTEM,
) -> None:
    """List the running VMs that have slices."""
    vms = ask(runtime_dir, VmListRequest())["vms"]
    if every:
        served = {vm["uuid"] for vm in vms}
        vms += [vm for vm in _kept_vms(connect) if vm["uuid"] not in served]
    if as_json:
        print_json(vms)
        return
    columns = ("vm", "state", "memory*", "compute*", "pinned", "sessions", "uuid")
    print_table(columns, [_row(vm) for vm in vms])
    console.print("* not enforced yet")
    for vm in vms:
        if vm["state"] == "broken":
            console.print(f"broken  {vm['problem']}")


def _row(vm: dict[str, Any]) -> tuple[Any, ...]:
    slices: tuple[str, ...] = ("", "", "")
    if vm["state"] != "broken":
        memory, pinned = format_size(vm["memory_bytes"]), format_size(vm["pinned_bytes"])
        slices = (memory, f"{vm['compute_percent']} %", pinned)
    return (vm["name"], vm["state"], *slices, vm["n_sessions"], vm["uuid"])


def _kept_vms(uri: str) -> list[dict[str, Any]]:
    """Return libvirt's domains that have slices, in the form of kvgpud's answer.

    One whose parts contradict each other has the state "broken", what cannot be told of it is None,
    and `problem` says why.
    """
    with libvirt_domains.connect(uri) as libvirt:
        domains = libvirt.domains()
    return [vm for vm in map(_kept_vm, domains) if vm]


def _kept_vm(domain: Domain) -> dict[str, Any] | None:
    from kvgpu.host import domain_xml

    vm = dict.fromkeys(field.name for field in fields(VmInfo))
    vm |= {"uuid": domain.uuid, "name": domain.name, "n_sessions": 0, "n_kicks": 0}
    try:
        definition = domain_xml.read_definition(domain.xml)
    except KvgpuError as error:
        return vm | {"state": "broken", "problem": str(error)}
    if definition is None:
        return None
    return vm | {
        # A running one that kvgpud serves is in kvgpud's list.
        "state": "not served" if domain.is_running else "shut off",
        "device": definition.device.value or "none",
        "region_bytes": definition.region_bytes,
        **asdict(definition.slices),
    }


@app.command("show")
def vm_show(
    vm: Annotated[str, typer.Argument(help="Its name or UUID.")],
    runtime_dir: RuntimeDir = paths.RUNTIME_DIR,
    as_json: Json = False,
) -> None:
    """Show all about one running VM and its sessions."""
    found = [v for v in ask(runtime_dir, VmListRequest())["vms"] if vm in (v["name"], v["uuid"])]
    if not found:
        raise ConfigError(
            f"kvgpud serves no VM {vm!r}",
            hint="see `kvgpu vm list`; one that runs and is not there was started without the hook",
        )
    sessions = [
        info
        for info in ask(runtime_dir, SessionListRequest())["sessions"]
        if info["region"] == found[0]["uuid"]
    ]
    if as_json:
        print_json(found[0] | {"sessions": sessions})
        return
    sizes = {n: format_size(v) for n, v in found[0].items() if n.endswith("_bytes")}
    sizes["memory_bytes"] += " (not enforced yet)"
    shares = {"compute_percent": f"{found[0]['compute_percent']} (not enforced yet)"}
    print_fields(found[0] | sizes | shares)
    for info in sessions:
        console.print(f"session {info['session']}: {info['comm']}, pid {info['pid']}")


@app.command("xml")
def vm_xml(
    name: Annotated[str, typer.Argument(help="The VM's name.")] = "",
    memory: _Memory = "",
    compute: _Compute = 100,
    pinned: Annotated[
        str, typer.Option(help="Pinned memory; default a quarter of --ram, at least 1 GiB.")
    ] = "",
    vcpus: Annotated[int, typer.Option(min=1)] = 2,
    ram: Annotated[str, typer.Option(help="The VM's memory.")] = "4GiB",
    disk: Annotated[
        list[str] | None,
        typer.Option(help="PATH or PATH:FORMAT (raw, qcow2), virtio; several make several disks."),
    ] = None,
    kernel: Annotated[str, typer.Option(help="Boot this kernel, not the disk.")] = "",
    initrd: str = "",
    cmdline: str = "",
    kvm: Annotated[
        bool | None, typer.Option(help="Default: KVM where the processor has it.")
    ] = None,
    uuid: Annotated[str, typer.Option(help="Default: a new one.")] = "",
    serial_log: Annotated[str, typer.Option(help="Keep the serial console in this file.")] = "",
    network: Annotated[
        str,
        typer.Option(
            help="user (NAT by QEMU), none, a libvirt network's name, or bridge:NAME; virtio."
        ),
    ] = "user",
    mac: Annotated[str, typer.Option(help="Default: libvirt chooses one.")] = "",
    shmem: _Shmem = True,
    doorbell: _Doorbell = False,
    strict: _Strict = False,
    extend: Annotated[
        Path | None,
        typer.Option("--from", help="Add kvgpu to this domain XML instead (- reads stdin)."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print no XML, but whether the domain could start on this host."
        ),
    ] = False,
    as_json: Json = False,
    connect: _Connect = SYSTEM,
    runtime_dir: RuntimeDir = paths.RUNTIME_DIR,
) -> None:
    """Print a domain that has slices of this host's GPUs, for `sudo virsh define /dev/stdin`."""
    # lxml only here: the other commands, `kvgpu run` above all, start quicker without it.
    from kvgpu.host import domain_xml

    device = options.device(shmem, doorbell)
    if extend:
        text = options.read_domain(extend)
        slices = options.slices(memory, compute, pinned, domain_xml.ram_bytes(text), strict)
        xml = domain_xml.extend_domain(text, slices, str(runtime_dir), device)
    elif name:
        ram_bytes = parse_size(ram)
        slices = options.slices(memory, compute, pinned, ram_bytes, strict)
        machine = domain_xml.Machine(
            name=name,
            uuid=options.parse_uuid(uuid),
            ram_bytes=ram_bytes,
            n_vcpus=vcpus,
            kvm=options.choose_kvm() if kvm is None else kvm,
            disks=tuple(map(options.parse_disk, disk or [])),
            kernel=os.path.abspath(kernel) if kernel else "",
            initrd=os.path.abspath(initrd) if initrd else "",
            cmdline=cmdline,
            serial_log=os.path.abspath(serial_log) if serial_log else "",
            network=network,
            mac=mac,
        )
        xml = domain_xml.make_domain(machine, slices, str(runtime_dir), device)
    else:
        raise ConfigError("NAME is missing", hint="kvgpu vm xml NAME --memory 8GiB ...")
    if dry_run:
        from kvgpu.host.domain_check import check_domain

        print_findings(check_domain(xml, runtime_dir, connect), as_json)
        return
    if as_json:
        print_json({"xml": xml})
    else:
        sys.stdout.write(xml)
    print(f"kvgpu: {_NOT_ENFORCED}", file=sys.stderr)


@app.command("attach")
def vm_attach(
    domain: _Domain,
    memory: _Memory = "",
    compute: _Compute = 100,
    pinned: Annotated[
        str,
        typer.Option(
            help="Pinned memory; default a quarter of its RAM, at least 1 GiB (--live: 510 MiB)."
        ),
    ] = "",
    shmem: _Shmem = True,
    doorbell: _Doorbell = False,
    strict: _Strict = False,
    live: _Live = False,
    dry_run: _DryRun = False,
    as_json: Json = False,
    connect: _Connect = SYSTEM,
    runtime_dir: RuntimeDir = paths.RUNTIME_DIR,
) -> None:
    """Give slices to a domain that exists, or others to one that has some.

    Its persistent definition is changed, all else in it stays as libvirt has it.
    """
    from kvgpu.host import domain_xml, hot_plug

    def change(xml: str) -> str:
        ram_bytes = domain_xml.ram_bytes(xml)
        default = hot_plug.default_pinned_bytes(ram_bytes) if live and shmem else ""
        slices = options.slices(memory, compute, pinned or str(default), ram_bytes, strict)
        device = options.device(shmem, doorbell)
        return domain_xml.extend_domain(xml, slices, str(runtime_dir), device)

    with libvirt_domains.connect(connect) as libvirt:
        before = libvirt.domain(domain).xml
        if live:
            plug = hot_plug.HotPlug(libvirt, domain, partial(ask, runtime_dir))
            after = plug.attach(change, dry_run=dry_run)
            if not dry_run:
                _wait_for_guest(plug)
        else:
            after = libvirt.edit(domain, change, dry_run).xml
        _report(libvirt.domain(domain), before, after, dry_run, live, as_json)
    print(f"kvgpu: {_NOT_ENFORCED}", file=sys.stderr)


@app.command("detach")
def vm_detach(
    domain: _Domain,
    live: _Live = False,
    force: Annotated[
        bool, typer.Option("--force", help="With --live: end the sessions that it has.")
    ] = False,
    dry_run: _DryRun = False,
    as_json: Json = False,
    connect: _Connect = SYSTEM,
    runtime_dir: RuntimeDir = paths.RUNTIME_DIR,
) -> None:
    """Take a domain's slices away; its persistent definition is changed."""
    from kvgpu.host import domain_xml, hot_plug

    with libvirt_domains.connect(connect) as libvirt:
        before = libvirt.domain(domain).xml
        if live and not dry_run:
            hot_plug.HotPlug(libvirt, domain, partial(ask, runtime_dir)).detach(force=force)
            after = libvirt.domain(domain).xml
        else:
            after = libvirt.edit(domain, domain_xml.strip_domain, dry_run).xml
        _report(libvirt.domain(domain), before, after, dry_run, live, as_json)


def _wait_for_guest(plug: HotPlug) -> None:
    if not plug.wait_until_ready():
        print(
            f"kvgpu: {plug.name}: the devices are plugged in, but its guest has not answered yet; "
            "is kvgpu-guest installed there, and what does `kvgpu-check` in it say?",
            file=sys.stderr,
        )


def _report(
    domain: Domain, before: str, after: str, dry_run: bool, live: bool, as_json: bool
) -> None:
    """Say what a change of a definition does, or would do."""
    if as_json:
        difference = [line.rstrip("\n") for line in _difference(domain.name, before, after)]
        takes_effect = "at once" if live else "at its next start"
        fields = {"domain": domain.name, "uuid": domain.uuid, "is_running": domain.is_running}
        changes = {"dry_run": dry_run, "takes_effect": takes_effect, "difference": difference}
        print_json(fields | changes)
    elif dry_run:
        sys.stdout.writelines(_difference(domain.name, before, after))
    elif domain.is_running and not live:
        print(
            f"kvgpu: {domain.name} runs on as it is until it is shut off and started, "
            "or see --live",
            file=sys.stderr,
        )


def _difference(name: str, before: str, after: str) -> Iterator[str]:
    """Yield what changes, in the form of `diff -u`; other quotes are no change."""
    from kvgpu.host import domain_xml

    old, new = (domain_xml.normal_form(xml).splitlines(True) for xml in (before, after))
    return difflib.unified_diff(old, new, f"{name}, before", f"{name}, after")
