# SPDX-License-Identifier: Apache-2.0
"""What the kernel says of a running worker's confinement."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

NAMESPACES = ("net", "mnt", "ipc")
# device nodes of NVIDIA's driver that libcuda opens
_NEEDED_NODE = re.compile(r"nvidia(ctl|-uvm|-caps|\d+)")
# descriptors beside those of PROTOCOL.md §5
_OWN_FILE = re.compile(r"/dev/(nvidia\S*|null)|anon_inode:\S+|/proc/\S*|/memfd:\S+( \(deleted\))?")


def status_fields(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def hard_limits(pid: int) -> dict[str, str]:
    """Return the hard limits by name, as /proc/PID/limits has them."""
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()[1:]
    return {line[:26].strip(): line[47:].split()[0] for line in lines}


def uid(pid: int) -> int:
    return int(status_fields(pid)["Uid"].split()[0])


def cgroup(pid: int) -> Path | None:
    """Return the worker's own group, None where this host can give it none."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        path = line.removeprefix("0::")
        if path != line and re.search(r"/kvgpu[^/]*/worker-\d+-\d+$", path):
            return Path("/sys/fs/cgroup") / path.lstrip("/")
    return None


def check_user(pid: int) -> str:
    fields = status_fields(pid)
    for kind in ("Uid", "Gid"):
        assert "0" not in fields[kind].split(), (kind, fields[kind])
    assert len(set(fields["Uid"].split())) == 1, fields["Uid"]
    assert not fields["Groups"].split()
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(fields[kind], 16) == 0, (kind, fields[kind])
    assert fields["NoNewPrivs"] == "1"
    return f"uid {fields['Uid'].split()[0]}, no capabilities, no new privileges"


def check_namespaces(pid: int) -> str:
    for namespace in NAMESPACES:
        theirs = os.readlink(f"/proc/{pid}/ns/{namespace}")
        assert theirs != os.readlink(f"/proc/self/ns/{namespace}"), namespace
    mounts = [line.split() for line in Path(f"/proc/{pid}/mounts").read_text().splitlines()]
    (options,) = (mount[3].split(",") for mount in mounts if mount[1] == "/proc")
    assert {"hidepid=2", "hidepid=invisible"} & set(options), options
    return f"own namespaces {', '.join(NAMESPACES)}; /proc shows the worker alone"


def _driver_folder(pid: int) -> Path:
    arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return Path(arguments[arguments.index("--driver") + 1]).parent


def check_root(pid: int) -> str:
    root = Path(f"/proc/{pid}/root")
    shown = {path.relative_to(root).parts for path in [*root.iterdir(), *root.glob("etc/*")]}
    # The way to its driver is there, where that lies: nothing else of those folders.
    way = _driver_folder(pid).relative_to("/").parts
    for n_parts in range(1, len(way)):
        if way[0] not in ("usr", "lib", "lib64", "opt"):
            beside = {path.name for path in root.joinpath(*way[:n_parts]).iterdir()}
            assert beside == {way[n_parts]}, beside
    shown.discard(way[:1])
    assert {("etc", "ld.so.cache")} == {parts for parts in shown if len(parts) == 2}, shown
    assert not {("home",), ("root",), ("var",), ("run",), ("tmp",)} & shown, shown
    devices = sorted(path.name for path in (root / "dev").iterdir())
    nodes = [name for name in devices if _NEEDED_NODE.fullmatch(name)]
    assert set(devices) - set(nodes) == {"null", "shm", "urandom", "zero"}, devices
    mounts = [line.split() for line in Path(f"/proc/{pid}/mounts").read_text().splitlines()]
    on_disk = [mount for mount in mounts if not mount[1].startswith(("/dev/", "/proc"))]
    assert {"/", "/usr"} <= {mount[1] for mount in on_disk}, mounts
    assert all("ro" in mount[3].split(",") for mount in on_disk), mounts
    (shm,) = (mount[3].split(",") for mount in mounts if mount[1] == "/dev/shm")
    assert {"nosuid", "nodev", "noexec", "mode=700", "size=131072k"} <= set(shm), shm
    return f"{len(on_disk)} mounts, all but /dev/shm's read-only; device nodes: {' '.join(devices)}"


def check_descriptors(pid: int) -> str:
    files = {int(path.name): os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()}
    assert set(range(7)) <= set(files), files  # PROTOCOL.md §5
    others = {fd: target for fd, target in files.items() if fd > 6}
    foreign = {fd: target for fd, target in others.items() if not _OWN_FILE.fullmatch(target)}
    # NVIDIA's driver talks to itself: through pipes, and sockets of the worker's own namespace.
    shared = _pipes_of_others(pid)
    own = {f"socket:[{inode}]" for inode in _sockets_of_namespace(pid)}
    reaching_out = {
        fd: target
        for fd, target in foreign.items()
        if target not in own and (not target.startswith("pipe:") or target in shared)
    }
    assert not reaching_out, reaching_out
    return f"7 descriptors from kvgpud, {len(others)} of its driver"


def _pipes_of_others(pid: int) -> set[str]:
    found = set()
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        if path.parts[2] != str(pid):
            with contextlib.suppress(OSError):  # it has ended, or closed it
                found.add(os.readlink(path))
    return {target for target in found if target.startswith("pipe:")}


def _sockets_of_namespace(pid: int) -> set[str]:
    """Return the inodes of the sockets that were made in the worker's net namespace."""
    found = set()
    for name in ("unix", "netlink", "packet", "tcp", "udp", "raw"):
        with contextlib.suppress(FileNotFoundError):  # a protocol that the kernel has not
            for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
                found.update(re.findall(r"\b\d+\b", line))
    return found


def check_limits(pid: int, n_tasks: int = 64 * 1024) -> str:
    limits = hard_limits(pid)
    assert limits["Max core file size"] == "0"
    assert limits["Max processes"] == str(n_tasks)
    assert int(limits["Max open files"]) <= 8192
    assert limits["Max file size"] == str(256 << 20)
    return f"no core file, {n_tasks} tasks, {limits['Max open files']} descriptors, 256 MiB a file"


def check_all(pid: int) -> list[str]:
    """Return a line for each property; raise AssertionError for one that does not hold."""
    checks = (check_user, check_namespaces, check_root, check_descriptors, check_limits)
    return [check(pid) for check in checks]
