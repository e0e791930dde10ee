# SPDX-License-Identifier: Apache-2.0
"""One virtual machine under libvirt, made by `kvgpu vm xml`.

Files and folders go in on a read-only second disk, mounted at /payload; commands run through
QEMU's guest agent. Both are attached by virsh, after `virsh define` of exactly what kvgpu printed.
"""

from __future__ import annotations

import base64
import json
import shutil
import stat
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framework.guest_image import GuestImage, make_ext4, run
from framework.host_services import (
    LIBVIRT_URI,
    REPOSITORY,
    HostError,
    kvgpu,
    virsh,
    wait_until,
)

BOOT_S = 180.0
# CUDA programs are no business of root.
AS_NOBODY = "setpriv --reuid=nobody --regid=nogroup --groups=kvgpu"
PAYLOAD_SLACK_BYTES = 16 << 20  # file system structures beside the files
AGENT_CHANNEL = """<channel type='unix'>
  <target type='virtio' name='org.qemu.guest_agent.0'/>
</channel>
"""


class GuestError(Exception):
    """Something did not work inside the guest."""


@dataclass(frozen=True, slots=True)
class Output:
    """What a command in the guest left behind."""

    status: int
    stdout: str
    stderr: str


def folder_for_qemu(name: str) -> Path:
    """Return a new folder that QEMU's user can reach, in build/ if that is possible."""
    base = REPOSITORY / "build" / "vm"
    if not all(parent.stat().st_mode & stat.S_IXOTH for parent in REPOSITORY.parents):
        base = Path("/var/tmp/kvgpu-vm")
    folder = base / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o755)
    return folder


class Vm:
    """A defined VM. Use it as a context manager: at the end nothing of it is left."""

    def __init__(
        self,
        name: str,
        image: GuestImage,
        payload: Iterable[Path] = (),
        xml_options: Iterable[str] = (),
    ) -> None:
        self.name = name
        self.folder = folder_for_qemu(name)
        self.serial_log = self.folder / "serial.log"
        self._image = self._reachable(image)
        self._payload = list(payload)
        self._xml_options = list(xml_options)
        self._has_payload_disk = False

    def __enter__(self) -> Vm:
        self.remove()  # what a run that was cut off has left
        try:
            self.define()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def define(self) -> None:
        overlay = self.folder / "disk.qcow2"
        base = ("-b", self._image.rootfs, "-F", "raw")
        run("qemu-img", "create", "-q", "-f", "qcow2", *base, overlay)
        options = {"ram": "1GiB", "pinned": "256MiB", "memory": "1GiB", "vcpus": "2"}
        options |= {"disk": f"{overlay}:qcow2", "kernel": str(self._image.vmlinux)}
        options |= {"initrd": str(self._image.initrd), "serial-log": str(self.serial_log)}
        options |= {"cmdline": "console=ttyS0 quiet", "network": "none"}
        arguments = [f"--{name}={value}" for name, value in options.items()]
        xml = kvgpu("vm", "xml", self.name, *arguments, *self._xml_options)
        (self.folder / "domain.xml").write_text(xml)
        virsh("define", "/dev/stdin", stdin=xml)
        channel = self.folder / "agent.xml"
        channel.write_text(AGENT_CHANNEL)
        virsh("attach-device", self.name, channel, "--config")
        if self._payload:
            self._attach_payload()

    def start(self) -> None:
        """Start the VM and return when commands can run in it."""
        virsh("start", self.name)
        self.wait_for_boot()

    def wait_for_boot(self) -> None:
        """Return when commands can run in the VM, which is starting."""
        wait_until(f"{self.name} answers", self.answers, BOOT_S)
        if self._has_payload_disk:
            self.check("mount -o ro /dev/vdb /payload")

    def definition(self) -> str:
        """Return the domain XML as libvirt has it."""
        return virsh("dumpxml", self.name)

    def uuid(self) -> str:
        return virsh("domuuid", self.name).strip()

    def destroy(self) -> None:
        virsh("destroy", self.name)

    def remove(self) -> None:
        """Destroy and undefine; fine in any state."""
        for command in ("destroy", "undefine"):
            subprocess.run(["virsh", "-c", LIBVIRT_URI, command, self.name], capture_output=True)

    def check(self, command: str, timeout_s: float = 60) -> str:
        """Run a shell command in the guest and return its output; raise GuestError if it fails."""
        output = self.run(command, timeout_s)
        if output.status != 0:
            raise GuestError(
                f"{self.name}: `{command}` ended with status {output.status}:\n"
                f"{output.stdout[-2000:]}{output.stderr[-2000:]}"
            )
        return output.stdout

    def run(self, command: str, timeout_s: float = 60) -> Output:
        return self.wait(self.spawn(command), timeout_s)

    def spawn(self, command: str) -> int:
        """Start a shell command in the guest and return its process number there."""
        arguments = {"path": "/bin/sh", "arg": ["-c", command], "capture-output": True}
        return int(self._ask("guest-exec", arguments)["pid"])

    def wait(self, pid: int, timeout_s: float = 60) -> Output:
        deadline = time.monotonic() + timeout_s
        pause_s = 0.05
        while True:
            reply = self._ask("guest-exec-status", {"pid": pid})
            if reply["exited"]:
                break
            if time.monotonic() > deadline:
                raise GuestError(f"{self.name}: process {pid} runs for more than {timeout_s:g} s")
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.5)
        text = [base64.b64decode(reply.get(key, "")) for key in ("out-data", "err-data")]
        status = reply.get("exitcode", -reply.get("signal", 0))
        return Output(status, *(part.decode(errors="replace") for part in text))

    def _ask(self, command: str, arguments: dict[str, Any]) -> dict[str, Any]:
        request = json.dumps({"execute": command, "arguments": arguments})
        reply = json.loads(virsh("qemu-agent-command", self.name, request, "--timeout", "30"))
        result = reply["return"]
        assert isinstance(result, dict)
        return result

    def answers(self) -> bool:
        """Return whether commands can run in the VM; raise GuestError if it has ended."""
        if virsh("domstate", self.name).strip() not in ("running", "paused", "pmsuspended"):
            raise GuestError(f"{self.name} has ended while booting: see {self.serial_log}")
        try:
            self._ask("guest-ping", {})
        except HostError:
            return False
        return True

    def _attach_payload(self) -> None:
        tree = self.folder / "payload"
        tree.mkdir()
        for path in self._payload:
            if path.is_dir():
                shutil.copytree(path, tree / path.name)
            else:
                shutil.copy2(path, tree)
        size_bytes = sum(path.stat().st_size for path in tree.rglob("*")) + PAYLOAD_SLACK_BYTES
        disk = self.folder / "payload.ext4"
        make_ext4(tree, disk, size_bytes)
        options = ("--subdriver", "raw", "--mode", "readonly", "--config")
        virsh("attach-disk", self.name, disk, "vdb", *options)
        self._has_payload_disk = True

    def _reachable(self, image: GuestImage) -> GuestImage:
        """Return the image as it is, or a copy where QEMU can read it."""
        if self.folder.is_relative_to(REPOSITORY):
            return image
        cache = self.folder.parent / image.rootfs.parent.name
        if not cache.is_dir():
            run("cp", "-r", "--sparse=always", image.rootfs.parent, cache)
        files = (image.vmlinux, image.initrd, image.rootfs)
        return GuestImage(*(cache / file.name for file in files))
