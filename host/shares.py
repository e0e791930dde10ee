# SPDX-License-Identifier: Apache-2.0
"""What one session has shared, for another session of the same owner (PROTOCOL.md §4.1).

Keeps nothing: a token names the session that has made it, whose worker answers for it. Neither the
tokens nor what the workers say is trusted; what comes from one owner never goes to another. Host
memory is an extent of the region, which the other session holds, too, from then on.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvgpu.host.control_frames import Frame, Resolve, Resolved

if TYPE_CHECKING:
    from kvgpu.host.session import Session

_MAX_PENDING = 64  # questions of a session that have no answer yet


@dataclass(frozen=True, slots=True)
class _Question:
    importer: Session
    request: int  # the importer's
    exporter: Session


class Shares:
    """Passes questions to the worker that made the token, and its answers back."""

    def __init__(self, sessions: Mapping[int, Session]) -> None:
        self._sessions = sessions
        self._pending: dict[int, _Question] = {}
        self._numbers = itertools.count(1)

    def ask(self, importer: Session, request: int, question: Resolve) -> None:
        """Pass on what `importer` asks; answer at once where nobody could."""
        exporter = self._sessions.get(question.session)
        n_pending = sum(asked.importer is importer for asked in self._pending.values())
        known = exporter is not None and exporter.worker and exporter.scope == importer.scope
        if not known or exporter is None or n_pending >= _MAX_PENDING:
            _answer(importer, request, Resolved.nothing())
            return
        number = next(self._numbers) & 0xFFFF_FFFF
        self._pending[number] = _Question(importer, request, exporter)
        assert exporter.worker
        exporter.worker.send(Frame(question, number))

    def answer(self, exporter: Session, frame: Frame) -> None:
        """Pass on what `exporter` has answered, with its descriptor."""
        assert isinstance(frame.body, Resolved)
        asked = self._pending.get(frame.id)
        if asked and asked.exporter is exporter:
            del self._pending[frame.id]
            body = frame.body
            if body.is_host_memory and not asked.importer.hold_extent(exporter, body.region_offset):
                body = Resolved.nothing()
            _answer(asked.importer, asked.request, body, frame.fds)

    def forget(self, gone: Session) -> None:
        """A session is over: nobody waits for its answers."""
        for number, asked in list(self._pending.items()):
            if gone in (asked.importer, asked.exporter):
                del self._pending[number]
                if asked.importer is not gone:
                    _answer(asked.importer, asked.request, Resolved.nothing())


def _answer(importer: Session, request: int, body: Resolved, fds: tuple[int, ...] = ()) -> None:
    if importer.worker:
        importer.worker.send(Frame(body, request), fds)
