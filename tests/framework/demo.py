# SPDX-License-Identifier: Apache-2.0
"""An unmodified CUDA program in a virtual machine, from packages to result, with the evidence.

The last line is `demo: passed` (status 0) or `demo: failed: STEP (log PATH)` (status 1).
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from framework.guest_image import GuestImage, guest_image, run
from framework.host_services import REPOSITORY, kvgpu, kvgpud, libvirt
from framework.packages import built_repo, install_command
from framework.runtimes import nvrtc, wheels
from framework.vm import AS_NOBODY, Vm

LOGS = REPOSITORY / "build" / "demo"
BUILT_PROGRAM = REPOSITORY / "build" / "release" / "tests" / "programs" / "demo"
PROGRAM = LOGS / "demo"
INSTALLED_LIBRARY = "/usr/lib/x86_64-linux-gnu/kvgpu/libcuda.so.1"
PROGRAM_LIMIT_S = 240.0
PYTHON_PROGRAM = REPOSITORY / "tests/loopback/runtimes/cuda_python.py"
SITE = LOGS / "site-packages"
GUESTS_SITE = "/usr/local/lib/python3*/dist-packages"

# Runs the program as any user would, and looks at the running process for what cannot be seen
# afterwards: the library it has mapped and its environment.
GUEST_SCRIPT = f"""cd /tmp; {AS_NOBODY} /payload/demo & pid=$!
maps=
while [ -z "$maps" ] && [ -d /proc/$pid ]; do maps=$(grep -m1 libcuda /proc/$pid/maps); done
tr '\\0' '\\n' </proc/$pid/environ >/tmp/environment
wait $pid; status=$?
echo "evidence maps: $maps"
echo "evidence environment: $(tr '\\n' ' ' </tmp/environment)"
exit $status
"""


class StepError(Exception):
    """What the demo shows is not so."""


@dataclass
class Demo:
    """The steps, their progress lines and the log with everything."""

    log: TextIO
    step_name: str = "start"
    begun: float = field(default_factory=time.monotonic)

    @contextlib.contextmanager
    def step(self, name: str, what: str) -> Iterator[None]:
        self.step_name = name
        self.say(f"{name}: {what}")
        begun = time.monotonic()
        yield
        self.say(f"{name}: done, {time.monotonic() - begun:.1f} s")

    def say(self, line: str) -> None:
        text = f"demo: [{time.monotonic() - self.begun:5.1f} s] {line}"
        print(text, flush=True)
        print(text, file=self.log, flush=True)

    def note(self, text: str) -> None:
        print(text, file=self.log, flush=True)

    def show(self, what: str, text: str) -> None:
        for line in text.strip().splitlines():
            self.say(f"  {what}: {line.strip()}")

    def require(self, condition: bool, what: str) -> None:
        if not condition:
            raise StepError(what)


def check_program(demo: Demo) -> str:
    """Show that the program knows nothing of kvgpu; return its sha256."""
    demo.require(BUILT_PROGRAM.is_file(), f"{BUILT_PROGRAM} is not built: run `make build`")
    shutil.copy2(BUILT_PROGRAM, PROGRAM)  # a build that runs meanwhile changes nothing
    symbols = run("readelf", "--wide", "--symbols", "--dyn-syms", PROGRAM).decode()
    needed = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "--dynamic", PROGRAM).decode())
    digest = hashlib.sha256(PROGRAM.read_bytes()).hexdigest()
    demo.require("kvgpu" not in symbols.lower(), "the program has symbols of kvgpu")
    demo.require(not any("cuda" in name for name in needed), "cudart is not linked statically")
    demo.show("sha256 of the program", digest)
    demo.show("readelf: needs", " ".join(needed) + "; no symbol of kvgpu")
    return digest


def copy_wheels() -> None:
    """Put into SITE what pip would install in the guest, which has no network."""
    shutil.rmtree(SITE, ignore_errors=True)
    bindings = wheels().parent / "cuda"
    sources = shutil.ignore_patterns("*.cpp", "*.pyx", "*.pxd", "__pycache__")
    shutil.copytree(bindings, SITE / "cuda", ignore=sources)
    (SITE / "nvidia/cu13/lib").mkdir(parents=True)
    for library in nvrtc().parent.glob("libnvrtc*.so.13*"):
        if ".alt." not in library.name:
            shutil.copy2(library, SITE / "nvidia/cu13/lib")


def show_machine(demo: Demo, vm: Vm) -> None:
    demo.show("/proc/version", vm.check("cat /proc/version"))
    devices = vm.check("lspci -n -d 1af4:1110")
    demo.require("1af4:1110" in devices, "the VM has no PCI device 1af4:1110")
    demo.show("lspci -n", devices)


def install(demo: Demo, vm: Vm) -> None:
    demo.note(vm.check(install_command("/payload/repo", "kvgpu-guest"), timeout_s=120))
    library = vm.check("ldconfig -p | grep -F 'libcuda.so.1 '")
    demo.require(INSTALLED_LIBRARY in library, f"ldconfig finds another library: {library}")
    demo.show("ldconfig -p", library)


def run_program(demo: Demo, vm: Vm, digest: str) -> None:
    demo.require(
        vm.check("sha256sum /payload/demo").startswith(digest), "another program is in the VM"
    )
    output = vm.run(GUEST_SCRIPT, timeout_s=PROGRAM_LIMIT_S)
    demo.note(output.stdout + output.stderr)
    lines = output.stdout.splitlines()
    for line in lines:
        if not line.startswith("evidence "):
            demo.say(f"  guest: {line}")
    demo.show("guest stderr", output.stderr)
    evidence = dict(
        line.removeprefix("evidence ").split(": ", 1)
        for line in lines
        if line.startswith("evidence ")
    )
    demo.require(output.status == 0, f"the program ended with status {output.status}")
    maps, environment = evidence.get("maps", ""), evidence.get("environment", "")
    demo.require(INSTALLED_LIBRARY in maps, "the installed libcuda.so.1 was not seen mapped")
    demo.show("/proc/PID/maps", maps)
    demo.require("PATH=" in environment, "the program's environment was not seen")
    demo.require(
        not re.search(r"\b(LD_|KVGPU_)", environment), f"LD_* is set: {environment.strip()}"
    )
    demo.show("environment", f"{environment.strip()} (no LD_*)")


def run_python(demo: Demo, vm: Vm) -> None:
    vm.check(f"cp -rs /payload/{SITE.name}/* {GUESTS_SITE}/")
    command = f"cd /tmp && {AS_NOBODY} python3 /payload/{PYTHON_PROGRAM.name}"
    output = vm.run(command, timeout_s=PROGRAM_LIMIT_S)
    demo.show("guest", output.stdout)
    demo.show("guest stderr", output.stderr)
    demo.require(output.status == 0, f"it ended with status {output.status}")


def show_host_side(demo: Demo, log: Path) -> None:
    opened = [line for line in log.read_text().splitlines() if "opened for kvgpu-demo" in line]
    demo.require(bool(opened), "kvgpud has opened no session for the VM")
    demo.show("kvgpud", opened[-1].partition("sessions: ")[2] or opened[-1])


def steps(demo: Demo) -> None:
    with demo.step("program", "an nvcc-built program with static cudart"):
        packages = built_repo()
        digest = check_program(demo)
        copy_wheels()
    with demo.step("image", "small Debian guest, made now or reused"):
        image: GuestImage = guest_image()
    with contextlib.ExitStack() as stack:
        with demo.step("libvirt", "libvirtd with kvgpu's hook; started if none runs"):
            stack.enter_context(libvirt(LOGS))
        with demo.step("kvgpud", "kvgpud with the software GPU"):
            stack.enter_context(kvgpud(LOGS))
        vm = Vm("kvgpu-demo", image, [packages, PROGRAM, PYTHON_PROGRAM, SITE])
        stack.callback(vm.remove)
        with demo.step("define", "kvgpu vm xml kvgpu-demo … | virsh define /dev/stdin"):
            vm.remove()  # left by a demo that was killed
            vm.define()
        accelerator = "KVM" if "<domain type='kvm'" in vm.definition() else "TCG"
        with demo.step("start", f"virsh start kvgpu-demo ({accelerator})"):
            vm.start()
            show_machine(demo, vm)
        with demo.step("install", "in the guest: apt-get install kvgpu-guest"):
            install(demo, vm)
        with demo.step("run", "in the guest: ./demo"):
            run_program(demo, vm, digest)
            show_host_side(demo, LOGS / "kvgpud.log")
        with demo.step("python", "in the guest: cuda-python, its kernels compiled by NVRTC there"):
            run_python(demo, vm)
        with demo.step("stop", "virsh destroy; nothing is left"):
            vm.destroy()
            demo.require("kvgpu-demo" not in kvgpu("session", "list"), "a session is left")
            left = list(Path("/dev/shm").glob(f"kvgpu-{vm.uuid()}"))
            demo.require(not left, f"a region is left: {left}")


def main() -> int:
    LOGS.mkdir(parents=True, exist_ok=True)
    log_path = LOGS / "demo.log"
    with log_path.open("w") as log:
        demo = Demo(log)
        try:
            steps(demo)
        except (Exception, KeyboardInterrupt) as error:
            demo.note(traceback.format_exc())
            if isinstance(error, subprocess.TimeoutExpired):
                demo.say(f"{demo.step_name}: {error.cmd} took too long")
            else:
                demo.say(f"{demo.step_name}: {error or type(error).__name__}")
            print(f"demo: failed: {demo.step_name} (log {log_path})")
            return 1
    print("demo: passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
