# SPDX-License-Identifier: Apache-2.0
"""Control frames (PROTOCOL.md §4): encode, decode, and a decoder for byte streams.

Trusts nothing it decodes: lengths are checked before a payload is looked at. The C++ form of the
same facts is protocol/include/kvgpu/control.h; a test compares the two.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from kvgpu.host.activity_frames import Activity, ActivityQuery
from kvgpu.host.complaints import Complaints
from kvgpu.host.device_frames import DeviceQuery, DeviceReport, Usage, UsageQuery
from kvgpu.host.errors import ProtocolError
from kvgpu.host.frame_body import Body

PROTOCOL_MAJOR = 0
PROTOCOL_MINOR = 4
FEATURE_DOORBELL = 1 << 2  # the client wakes its worker itself
FEATURE_DEVICE_QUERIES = 1 << 3  # DEVICE_QUERY is answered
FEATURES = 2 | FEATURE_DOORBELL | FEATURE_DEVICE_QUERIES  # 2: REFUSED_CALL records
# The windows a client may choose from; the C++ form is in protocol/include/kvgpu/layout.h.
WINDOWS = (0x3000_0000_0000, 0x2000_0000_0000, 0x4000_0000_0000, 0x5000_0000_0000)
# In OPEN and OPENED: guest and host share no memory (PROTOCOL.md §7).
FEATURE_BYTE_STREAM = 1 << 8
MAX_PAYLOAD_BYTES = 4096
MAX_STREAM_PAYLOAD_BYTES = 64 << 10
STREAM_FORM_TYPES = range(32, 48)
HEADER = struct.Struct("<IHHII")
MAX_FRAME_BYTES = HEADER.size + MAX_PAYLOAD_BYTES
MAX_STREAM_FRAME_BYTES = HEADER.size + MAX_STREAM_PAYLOAD_BYTES
MAGIC = 0x4347564B
_MAGIC_BYTES = struct.pack("<I", MAGIC)
_PIECE_BYTES = 256

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Failure(Body):
    """A CUresult and a message up to the end of the payload."""

    LAYOUT: ClassVar[struct.Struct] = struct.Struct("<i")
    cuda_error: int
    message: str

    def pack(self) -> bytes:
        text = self.message.replace("\0", " ").encode()
        room_bytes = MAX_PAYLOAD_BYTES - self.LAYOUT.size
        return self.LAYOUT.pack(self.cuda_error) + text[:room_bytes]

    @classmethod
    def unpack(cls, payload: bytes) -> Body:
        (cuda_error,) = cls.LAYOUT.unpack_from(payload)
        return cls(cuda_error, payload[cls.LAYOUT.size :].decode(errors="replace"))


@dataclass(frozen=True, slots=True)
class Hello(Body):
    TYPE: ClassVar[int] = 1
    LAYOUT: ClassVar[struct.Struct] = struct.Struct("<HHI16s")
    major: int
    minor: int
    features: int
    boot_id: bytes


@dataclass(frozen=True, slots=True)
class Welcome(Body):
    TYPE: ClassVar[int] = 2
    LAYOUT: ClassVar[struct.Struct] = struct.Struct("<HHIQ16s")
    major: int
    minor: int
    features: int
    region_bytes: int
    vm_uuid: bytes


@dataclass(frozen=True, slots=True)
class Refused(Failure):
    TYPE: ClassVar[int] = 3


@dataclass(frozen=True, slots=True)
class Open(Body):
    TYPE: ClassVar[int] = 4
    LAYOUT: ClassVar[struct.Struct] = struct.Struct("<HHIQII16s")
    major: int
    minor: int
    features: int
    window: int
    pid: int
    uid: int
    comm: bytes
    visible: bytes | None = None  # the program's CUDA_VISIBLE_DEVICES; None: it is not set

    def pack(self) -> bytes:
        fields = (self.major, self.minor, self.features, self.window, self.pid, self.uid)
        tail = b"" if self.visible is None else self.visible + b"\0"
        return self.LAYOUT.pack(*fields, self.comm) + tail

    @classmethod
    def unpack(cls, payload: bytes) -> Body:
        tail = payload[cls.LAYOUT.size :]
        visible = tail.split(b"\0")[0] if tail else None
        return replace(cls(*cls.LAYOUT.unpack_from(payload)), visible=visible)


@dataclass(frozen=True, slots=True)
class Opened(Body):
    TYPE: ClassVar[int] = 5
    LAYOUT: ClassVar[struct.Struct] = struct.Struct("<HHIIIQQQ")
    major: int
    minor: int
    features: int
    session: int
    doorbell: int
    block_offset: int
    block_bytes: int
    region_bytes: int


@dataclass(frozen=True, slots=True)
class Close(Body):
    TYPE: ClassVar[int] = 6


@dataclass(frozen=True, slots=True)
class Closed(Failure):
    TYPE: ClassVar[int] = 7


@dataclass(frozen=True, slots=True)
class Kick(Body):
    TYPE: ClassVar[int] = 8


@dataclass(frozen=True, slots=True)
class Ping(Body):
    TYPE: ClassVar[int] = 9


@dataclass(frozen=True, slots=True)
class Pong(Body):
    TYPE: ClassVar[int] = 10


@dataclass(frozen=True, slots=True)
class Query(Body):
    TYPE: ClassVar[int] = 11


@dataclass(frozen=True, slots=True)
class Facts(Body):
    TYPE: ClassVar[int] = 12
    LAYOUT: ClassVar[struct.Struct] = struct.Struct("<HHIiI")
    major: int
    minor: int
    features: int
    driver_version: int
    reserved: int = 0


@dataclass(frozen=True, slots=True)
class Ready(Body):
    TYPE: ClassVar[int] = 16
    LAYOUT: ClassVar[struct.Struct] = struct.Struct("<I")
    n_devices: int


@dataclass(frozen=True, slots=True)
class ExtentAlloc(Body):
    TYPE: ClassVar[int] = 17
    LAYOUT: ClassVar[struct.Struct] = struct.Struct("<Q")
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Extent(Body):
    TYPE: ClassVar[int] = 18
    LAYOUT: ClassVar[struct.Struct] = struct.Struct("<QQ")
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ExtentFree(Body):
    TYPE: ClassVar[int] = 19
    LAYOUT: ClassVar[struct.Struct] = struct.Struct("<Q")
    offset: int


@dataclass(frozen=True, slots=True)
class Failed(Failure):
    TYPE: ClassVar[int] = 20


@dataclass(frozen=True, slots=True)
class End(Body):
    TYPE: ClassVar[int] = 21


@dataclass(frozen=True, slots=True)
class Resumed(Body):
    TYPE: ClassVar[int] = 22
    LAYOUT: ClassVar[struct.Struct] = struct.Struct("<HHI")
    major: int
    minor: int
    reserved: int


@dataclass(frozen=True, slots=True)
class Sessions(Body):
    """Session numbers up to the end of the payload."""

    TYPE: ClassVar[int] = 23
    numbers: tuple[int, ...]

    def pack(self) -> bytes:
        return struct.pack(f"<{len(self.numbers)}I", *self.numbers)

    @classmethod
    def unpack(cls, payload: bytes) -> Body:
        n_numbers = len(payload) // 4
        return cls(struct.unpack_from(f"<{n_numbers}I", payload))


@dataclass(frozen=True, slots=True)
class Prestarted(Body):
    TYPE: ClassVar[int] = 24
    LAYOUT: ClassVar[struct.Struct] = struct.Struct("<HHI")
    major: int
    minor: int
    n_devices: int


@dataclass(frozen=True, slots=True)
class Assign(Body):
    TYPE: ClassVar[int] = 25
    LAYOUT: ClassVar[struct.Struct] = struct.Struct("<HHIQQ")
    major: int
    minor: int
    away_s: int
    region_bytes: int
    block_offset: int


@dataclass(frozen=True, slots=True)
class Resolve(Body):
    """What has a session shared by this token?"""

    TYPE: ClassVar[int] = 28
    LAYOUT: ClassVar[struct.Struct] = struct.Struct("<16s")
    token: bytes

    @property
    def session(self) -> int:
        """The number of the session that has made the token."""
        return int.from_bytes(self.token[:4], "little")


@dataclass(frozen=True, slots=True)
class Resolved(Body):
    """What a worker has shared; kvgpud passes it on, with its descriptor."""

    TYPE: ClassVar[int] = 29
    LAYOUT: ClassVar[struct.Struct] = struct.Struct("<II64s")
    kind: int
    reserved: int
    content: bytes
    HOST_MEMORY: ClassVar[int] = 6

    @property
    def is_host_memory(self) -> bool:
        return self.kind == self.HOST_MEMORY

    @property
    def region_offset(self) -> int:
        """Of the extent that is shared, if it is one."""
        return int.from_bytes(self.content[:8], "little")

    @classmethod
    def nothing(cls) -> Resolved:
        return cls(0, 0, b"")


@dataclass(frozen=True, slots=True)
class StreamForm(Body):
    """Any frame of a byte-stream session: kvgpud passes it on as it is."""

    frame_type: int
    payload: bytes

    def pack(self) -> bytes:
        return self.payload


BODIES: dict[int, type[Body]] = {
    body.TYPE: body
    for body in (
        *(Hello, Welcome, Refused, Open, Opened, Close, Closed, Kick, Ping, Pong, Query, Facts),
        *(Ready, ExtentAlloc, Extent, ExtentFree, Failed, End, Resumed, Sessions),
        *(Prestarted, Assign, DeviceQuery, DeviceReport, UsageQuery, Usage, Resolve, Resolved),
        *(ActivityQuery, Activity),
    )
}


@dataclass(frozen=True, slots=True)
class Frame:
    """A decoded frame; `id` is a session or a request number, as the table in PROTOCOL.md says.

    `fds`: descriptors that came with it, which are closed when it has been handled.
    """

    body: Body
    id: int = 0
    fds: tuple[int, ...] = ()

    def encode(self) -> bytes:
        payload = self.body.pack()
        body = self.body
        frame_type = body.frame_type if isinstance(body, StreamForm) else body.TYPE
        return HEADER.pack(MAGIC, frame_type, 0, len(payload), self.id) + payload


def _max_payload_bytes(frame_type: int) -> int:
    return MAX_STREAM_PAYLOAD_BYTES if frame_type in STREAM_FORM_TYPES else MAX_PAYLOAD_BYTES


def decode(message: bytes) -> Frame:
    """Decode one whole frame, as a SOCK_SEQPACKET message carries it.

    Raises ProtocolError for anything that is not exactly one known frame.
    """
    if len(message) < HEADER.size:
        raise ProtocolError(f"a frame of {len(message)} bytes is shorter than its header")
    magic, frame_type, _flags, len_bytes, frame_id = HEADER.unpack_from(message)
    if magic != MAGIC or len_bytes != len(message) - HEADER.size:
        raise ProtocolError(f"bad frame header: magic {magic:#x}, length {len_bytes}")
    if len_bytes > _max_payload_bytes(frame_type):
        raise ProtocolError(f"a payload of {len_bytes} bytes is too long for type {frame_type}")
    if frame_type in STREAM_FORM_TYPES:
        return Frame(StreamForm(frame_type, message[HEADER.size :]), frame_id)
    body = BODIES.get(frame_type)
    if body is None:
        raise ProtocolError(f"unknown frame type {frame_type}")
    payload = message[HEADER.size :]
    if len(payload) < body.LAYOUT.size:
        raise ProtocolError(f"{body.__name__}: {len(payload)} of {body.LAYOUT.size} payload bytes")
    return Frame(body.unpack(payload), frame_id)


class StreamDecoder:
    """Finds frames in a byte stream; after garbage it goes on at the next magic, and says so.

    `n_pieces` counts what made work: frames, those that were dropped, and pieces of garbage.
    """

    def __init__(self, peer: str) -> None:
        self.n_pieces = 0
        self._buffer = bytearray()
        self._complaints = Complaints(_log, peer)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take `data` and yield the frames that are complete now."""
        self._buffer += data
        while self._align() and len(self._buffer) >= HEADER.size:
            _, frame_type, _, len_bytes, _ = HEADER.unpack_from(self._buffer)
            if len_bytes > _max_payload_bytes(frame_type):
                self._skip(len(_MAGIC_BYTES), f"length {len_bytes}")
                continue
            end = HEADER.size + len_bytes
            if len(self._buffer) < end:
                return
            message = bytes(self._buffer[:end])
            del self._buffer[:end]
            self.n_pieces += 1
            try:
                yield decode(message)
            except ProtocolError as error:
                self._complaints.add(f"frame dropped: {error}")

    def _align(self) -> bool:
        """Drop what precedes the next magic; False if there is none yet."""
        start = self._buffer.find(_MAGIC_BYTES)
        if start > 0:
            self._skip(start, "no magic")
        elif start < 0:
            # The tail may be the beginning of a magic of which the rest is still to come.
            keep = next(
                (n for n in (3, 2, 1) if self._buffer.endswith(_MAGIC_BYTES[:n])),
                0,
            )
            if len(self._buffer) > keep:
                self._skip(len(self._buffer) - keep, "no magic")
        return start >= 0

    def _skip(self, n_bytes: int, why: str) -> None:
        del self._buffer[:n_bytes]
        self.n_pieces += 1 + n_bytes // _PIECE_BYTES
        self._complaints.add(f"{n_bytes} bytes skipped: {why}")
