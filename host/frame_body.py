# SPDX-License-Identifier: Apache-2.0
"""What the payloads of all control frames have in common."""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Body:
    """A payload. Sub-classes list their fields in wire order; LAYOUT packs them."""

    TYPE: ClassVar[int]
    LAYOUT: ClassVar[struct.Struct] = struct.Struct("<")

    def pack(self) -> bytes:
        return self.LAYOUT.pack(*astuple(self))

    @classmethod
    def unpack(cls, payload: bytes) -> Body:
        return cls(*cls.LAYOUT.unpack_from(payload))
