# SPDX-License-Identifier: Apache-2.0
"""Sizes as people write them ("8GiB", "512M") and as programs need them (bytes)."""

from __future__ import annotations

import re

from kvgpu.host.errors import ConfigError

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_FACTORS = {"": 1, "K": KIB, "M": MIB, "G": GIB, "T": GIB << 10}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the bytes that `text` names; K, M, G, T are powers of 1024, with or without "iB"."""
    match = _SIZE.fullmatch(text.strip())
    size_bytes = int(float(match[1]) * _FACTORS[match[2].upper()]) if match else 0
    if size_bytes <= 0:
        raise ConfigError(f"{text!r} is not a size", hint="write it like 8GiB or 512MiB")
    return size_bytes


def format_size(size_bytes: int) -> str:
    """Write bytes with the largest unit that keeps the number at or above one."""
    for unit, factor in (("TiB", GIB << 10), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.4g} {unit}"
    return f"{size_bytes} B"


def is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def round_up_to_power_of_two(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()


def round_down_to_power_of_two(number: int) -> int:
    return 1 << (number.bit_length() - 1)
