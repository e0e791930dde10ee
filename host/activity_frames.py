# SPDX-License-Identifier: Apache-2.0
"""The frames that tell what a session has done (PROTOCOL.md §4): ACTIVITY_QUERY, ACTIVITY.

The C++ form of the same facts is protocol/include/kvgpu/control.h; a test compares the two.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, ClassVar

from kvgpu.host.errors import ProtocolError
from kvgpu.host.frame_body import Body


@dataclass(frozen=True, slots=True)
class ActivityQuery(Body):
    TYPE: ClassVar[int] = 30


@dataclass(frozen=True, slots=True)
class Activity(Body):
    """By the worker's word, so its text may be anything."""

    TYPE: ClassVar[int] = 31
    LAYOUT: ClassVar[struct.Struct] = struct.Struct("<5QiI56s56s")
    COUNT: ClassVar[struct.Struct] = struct.Struct("<56sQ")
    n_calls: int
    n_failed: int
    memory_bytes: int
    peak_memory_bytes: int
    failed_at_s: int
    cuda_error: int
    failed_call: bytes
    error_name: bytes
    counts: tuple[tuple[bytes, int], ...]  # the most frequent calls

    def pack(self) -> bytes:
        head = self.LAYOUT.pack(
            *(self.n_calls, self.n_failed, self.memory_bytes, self.peak_memory_bytes),
            *(self.failed_at_s, self.cuda_error, len(self.counts)),
            *(self.failed_call, self.error_name),
        )
        return head + b"".join(self.COUNT.pack(*count) for count in self.counts)

    @classmethod
    def unpack(cls, payload: bytes) -> Body:
        head = cls.LAYOUT.unpack_from(payload)
        n_counts = head[6]
        end = cls.LAYOUT.size + n_counts * cls.COUNT.size
        if end > len(payload):
            raise ProtocolError(f"Activity: {len(payload)} of {end} payload bytes")
        counts = cls.COUNT.iter_unpack(payload[cls.LAYOUT.size : end])
        parts: list[Any] = [*head[:6], *(text.rstrip(b"\0") for text in head[7:])]
        parts.append(tuple((call.rstrip(b"\0"), n_calls) for call, n_calls in counts))
        return cls(*parts)
