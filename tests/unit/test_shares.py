# SPDX-License-Identifier: Apache-2.0
"""What one session asks of another one's worker goes to its own VM's (its own user's) only."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, cast

from kvgpu.host.control_frames import Frame, Resolve, Resolved
from kvgpu.host.frame_body import Body
from kvgpu.host.session import Session
from kvgpu.host.shares import Shares

FOUND = Resolved(1, 0, b"handle".ljust(64, b"\0"))


@dataclass
class FakeWorker:
    sent: list[tuple[int, Body, int]] = field(default_factory=list)  # id, body, descriptors

    def send(self, frame: Frame, fds: tuple[int, ...] = ()) -> None:
        self.sent.append((frame.id, frame.body, len(fds)))


class FakeSession:
    def __init__(self, scope: str) -> None:
        self.scope = scope
        self.worker = FakeWorker()
        self.extents: set[int] = set()

    def hold_extent(self, other: FakeSession, offset: int) -> bool:
        if offset in other.extents:
            self.extents.add(offset)
        return offset in other.extents


def make(*scopes: str) -> tuple[Shares, list[Any]]:
    sessions = [FakeSession(scope) for scope in scopes]
    return Shares(cast(dict[int, Session], dict(enumerate(sessions)))), list(sessions)


def token_of(session: int) -> Resolve:
    return Resolve(session.to_bytes(4, "little") + bytes(12))


def test_answer_comes_back_with_its_descriptor() -> None:
    shares, (one, other) = make("vm", "vm")
    shares.ask(other, 7, token_of(0))
    ((number, question, _),) = one.worker.sent
    assert question == token_of(0)
    fd = os.open("/dev/null", os.O_RDONLY)
    shares.answer(one, Frame(FOUND, number, (fd,)))
    os.close(fd)
    assert other.worker.sent == [(7, FOUND, 1)]
    shares.answer(one, Frame(FOUND, number))  # nobody asks any more
    assert len(other.worker.sent) == 1


def test_host_memory_is_held_by_who_is_told_of_it() -> None:
    shares, (one, other) = make("vm", "vm")
    one.extents.add(4096)
    for offset in (4096, 8192):
        shares.ask(other, offset, token_of(0))
        content = offset.to_bytes(8, "little").ljust(64, b"\0")
        found = Resolved(Resolved.HOST_MEMORY, 0, content)
        shares.answer(one, Frame(found, one.worker.sent[-1][0]))
        answer = found if offset == 4096 else Resolved.nothing()  # what it has not it cannot give
        assert other.worker.sent[-1] == (offset, answer, 0)
    assert other.extents == {4096}


def test_other_owners_are_not_asked() -> None:
    shares, (one, other) = make("vm", "another vm")
    shares.ask(other, 7, token_of(0))
    shares.ask(other, 8, token_of(5))  # there is no such session
    assert one.worker.sent == []
    assert other.worker.sent == [(7, Resolved.nothing(), 0), (8, Resolved.nothing(), 0)]


def test_only_who_was_asked_may_answer() -> None:
    shares, (one, other, third) = make("vm", "vm", "vm")
    shares.ask(other, 7, token_of(0))
    shares.answer(third, Frame(FOUND, one.worker.sent[0][0]))
    assert other.worker.sent == []


def test_session_that_ends_answers_nothing() -> None:
    shares, (one, other) = make("vm", "vm")
    shares.ask(other, 7, token_of(0))
    shares.forget(one)
    assert other.worker.sent == [(7, Resolved.nothing(), 0)]
    shares.ask(other, 8, token_of(0))
    shares.forget(other)
    shares.answer(one, Frame(FOUND, one.worker.sent[-1][0]))
    assert len(other.worker.sent) == 1


def test_questions_without_an_answer_are_bounded() -> None:
    shares, (one, other) = make("vm", "vm")
    for request in range(200):
        shares.ask(other, request, token_of(0))
    assert len(one.worker.sent) == 64
    assert len(other.worker.sent) == 200 - 64
