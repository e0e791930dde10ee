# SPDX-License-Identifier: Apache-2.0
"""What `kvgpu session show` says: what kvgpud knows of a session, and what its worker says."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

from kvgpu.host.activity_frames import Activity
from kvgpu.host.complaints import plain
from kvgpu.host.device_frames import DeviceUsage
from kvgpu.host.messages import SessionActivity
from kvgpu.host.session import Session


async def describe(session: Session) -> dict[str, Any]:
    """Return the fields of SessionInfo, and `activity`: None where the worker does not answer."""
    usage, activity = await asyncio.gather(session.usage(), session.activity())
    described = asdict(_told(session, activity, usage)) if activity else None
    return asdict(session.info()) | {"activity": described}


def _told(session: Session, activity: Activity, usage: tuple[DeviceUsage, ...]) -> SessionActivity:
    last_error = {
        "call": _text(activity.failed_call),
        "result": activity.cuda_error,
        "name": _text(activity.error_name),
        "at_s": activity.failed_at_s,
    }
    return SessionActivity(
        devices=[
            {"device": ordinal} | asdict(own)
            for ordinal, own in zip(session.devices, usage, strict=False)
        ],
        memory_bytes=activity.memory_bytes,
        peak_memory_bytes=activity.peak_memory_bytes,
        n_calls=activity.n_calls,
        n_failed=activity.n_failed,
        last_error=last_error if activity.n_failed else None,
        calls={_text(call): n_calls for call, n_calls in activity.counts},
    )


def _text(name: bytes) -> str:
    return plain(name.decode("ascii", "replace"))
