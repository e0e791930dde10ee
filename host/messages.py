# SPDX-License-Identifier: Apache-2.0
"""The messages of kvgpud's API socket (PROTOCOL.md §6): one JSON object per line.

Standard library only, so that whatever speaks to kvgpud can import it quickly. The libvirt hook is
one self-contained file and repeats `HookRequest`'s field names; a test holds the two together.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, TypeAlias, get_type_hints

from kvgpu.host.errors import DaemonError, ProtocolError

MAX_LINE_BYTES = 4 << 20  # a domain XML is some KiB; 4 MiB is beyond anything libvirt makes


@dataclass(frozen=True, slots=True)
class HookRequest:
    """What libvirt told the hook; `operation` is prepare, started, stopped, release, reconnect."""

    OP: ClassVar[str] = "hook"
    vm_name: str
    operation: str
    domain_xml: str


@dataclass(frozen=True, slots=True)
class HostStatusRequest:
    OP: ClassVar[str] = "host_status"


@dataclass(frozen=True, slots=True)
class SessionListRequest:
    OP: ClassVar[str] = "session_list"


@dataclass(frozen=True, slots=True)
class SessionShowRequest:
    OP: ClassVar[str] = "session_show"
    session: int


@dataclass(frozen=True, slots=True)
class SessionKillRequest:
    OP: ClassVar[str] = "session_kill"
    session: int


@dataclass(frozen=True, slots=True)
class VmListRequest:
    OP: ClassVar[str] = "vm_list"


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Asks for a region and a client socket of its own; both live as long as this connection.

    `transport`: "shared", or "stream" for the form of VMs that share no memory with their host.
    """

    OP: ClassVar[str] = "run"
    pinned_bytes: int
    transport: str = "shared"


Request: TypeAlias = (
    HookRequest
    | HostStatusRequest
    | SessionListRequest
    | SessionShowRequest
    | SessionKillRequest
    | VmListRequest
    | RunRequest
)
_REQUESTS: dict[str, type[Request]] = {
    request.OP: request
    for request in (
        *(HookRequest, HostStatusRequest, SessionListRequest, SessionShowRequest),
        *(SessionKillRequest, VmListRequest, RunRequest),
    )
}


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A line of `kvgpu session list`."""

    session: int
    name: str
    vm: str  # the VM's name, or "host" for a program under `kvgpu run`
    region: str  # a UUID: of a VM's session the VM's
    pid: int  # in the guest
    uid: int  # in the guest
    comm: str
    worker_pid: int
    state: str  # starting, running, ending
    started_at_s: float  # Unix time
    pinned_bytes: int
    doorbell: int  # that its program rings to wake the worker; 0: it has none
    log: str


@dataclass(frozen=True, slots=True)
class SessionActivity:
    """What `kvgpu session show` adds, by the word of the session's worker."""

    # device, as `kvgpu gpu list` has it; own_bytes; free_bytes, total_bytes: 0 without a context
    devices: list[dict[str, int]]
    memory_bytes: int  # of all devices, that the program has
    peak_memory_bytes: int
    n_calls: int  # that reached the host
    n_failed: int
    last_error: dict[str, Any] | None  # call, result, name, at_s (Unix time)
    calls: dict[str, int]  # the most frequent


@dataclass(frozen=True, slots=True)
class VmInfo:
    """A line of `kvgpu vm list`."""

    uuid: str
    name: str
    state: str  # waiting (for QEMU), connected (to QEMU), ready (the agent has said HELLO),
    #             refused (not served; the log says why)
    device: str  # ivshmem-plain, ivshmem-doorbell, none
    region_bytes: int
    memory_bytes: int
    compute_percent: int
    pinned_bytes: int
    n_sessions: int
    n_kicks: int  # wake-ups of its workers that came through its port, not by a doorbell


@dataclass(frozen=True, slots=True)
class HostStatus:
    version: str
    pid: int
    driver: str
    inventory: dict[str, Any]  # as `kvgpu-worker --inventory` printed it; empty while unknown
    inventory_error: str
    allow_hmm: bool  # of host.toml
    confinement_problem: str  # what workers lack of docs/security.md; empty: nothing
    n_vms: int
    n_sessions: int
    log_dir: str  # of the sessions


def encode_request(request: Request) -> bytes:
    return json.dumps({"op": request.OP, **asdict(request)}).encode() + b"\n"


def decode_request(line: bytes) -> Request:
    """Decode a request and check names and types of its fields; unknown fields are refused."""
    try:
        data = json.loads(line)
    except ValueError as error:
        raise ProtocolError(f"not JSON: {error}") from error
    if not isinstance(data, dict) or not isinstance(data.get("op"), str):
        raise ProtocolError("a request is a JSON object with `op`")
    op = data.pop("op")
    request = _REQUESTS.get(op)
    if request is None:
        raise ProtocolError(f"unknown request {op!r}", hint="update kvgpud or the program asking")
    hints = get_type_hints(request)
    wanted = {field.name: hints[field.name] for field in fields(request)}
    if data.keys() != wanted.keys() or any(type(data[name]) is not wanted[name] for name in wanted):
        raise ProtocolError(f"request {op!r}: wants {sorted(wanted)}, got {sorted(data)}")
    return request(**data)


def encode_reply(result: dict[str, Any]) -> bytes:
    return json.dumps({"ok": True, **result}).encode() + b"\n"


def encode_error(error: str, hint: str) -> bytes:
    return json.dumps({"ok": False, "error": error, "hint": hint}).encode() + b"\n"


def decode_reply(line: bytes) -> dict[str, Any]:
    """Return the fields of a reply; raise DaemonError if it reports an error or is none."""
    try:
        data = json.loads(line)
    except ValueError as error:
        raise DaemonError("kvgpud hung up without an answer", hint="see its log") from error
    if not isinstance(data, dict) or data.get("ok") is not True:
        reply = data if isinstance(data, dict) else {}
        raise DaemonError(
            str(reply.get("error", "malformed reply")), hint=str(reply.get("hint", ""))
        )
    return data
