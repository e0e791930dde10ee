# SPDX-License-Identifier: Apache-2.0
"""Which devices a program sees: the CUDA_VISIBLE_DEVICES of its own environment."""

from __future__ import annotations

from collections.abc import Sequence

_PREFIX = "GPU-"


class TwiceError(ValueError):
    """A device is named twice; the message says which."""


def visible_devices(setting: bytes | None, uuids: Sequence[str]) -> tuple[int, ...]:
    """Return the ordinals that `setting` names among devices with these UUIDs (32 hex digits).

    As in CUDA's programming guide: names are ordinals or beginnings of UUIDs (GPU-…) that only one
    device has; the first that is no device ends the list. None: all devices. TwiceError: one is
    named twice, which CUDA refuses.
    """
    if setting is None:
        return tuple(range(len(uuids)))
    found: list[int] = []
    for name in setting.decode("utf-8", "replace").split(","):
        device = _find(name.strip(), uuids)
        if device is None:
            break
        if device in found:
            raise TwiceError(name.strip())
        found.append(device)
    return tuple(found)


def _find(name: str, uuids: Sequence[str]) -> int | None:
    if name.startswith(_PREFIX):
        begin = name.removeprefix(_PREFIX).replace("-", "").lower()
        matching = [device for device, uuid in enumerate(uuids) if uuid.startswith(begin)]
        return matching[0] if begin and len(matching) == 1 else None
    if name.isascii() and name.isdigit() and int(name) < len(uuids):
        return int(name)
    return None
