# SPDX-License-Identifier: Apache-2.0
"""The ring of protocol/include/kvgpu/ring.h against a model: a list of what was sent."""

from __future__ import annotations

import ctypes as c
import os
import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("KVGPU_TEST_BUILD", "build/release")
LINE_BYTES, HEADER_BYTES, MAX_RECORD_BYTES = 64, 32, 16 * 1024
MAX_BODY_BYTES = MAX_RECORD_BYTES - HEADER_BYTES
RING_SIZES_BYTES = (32 * 1024, 64 * 1024, 256 * 1024)
BAD_CREDIT, BAD_LENGTH, BAD_POSITION = -1, -2, -3
PAD = 2

settings.register_profile("ring", deadline=None, max_examples=200, stateful_step_count=80)
settings.load_profile("ring")


class Header(c.Structure):
    _fields_ = (
        ("commit", c.c_uint64),
        ("len_bytes", c.c_uint32),
        ("opcode", c.c_uint16),
        ("flags", c.c_uint16),
        ("call_id", c.c_uint64),
        ("target", c.c_uint32),
        ("reserved", c.c_uint32),
    )


def load() -> c.CDLL:
    library = c.CDLL(str(BUILD / "tests/native/libring_library.so"))
    ring, u64 = c.c_void_p, c.c_uint64
    signatures: dict[str, tuple[object, list[type]]] = {
        "ring_new": (ring, [u64]),
        "ring_free": (None, [ring]),
        "ring_bytes": (c.c_void_p, [ring]),
        "ring_credit": (c.POINTER(u64), [ring]),
        "ring_sent": (u64, [ring]),
        "ring_taken": (u64, [ring]),
        "ring_publish": (None, [ring]),
        "ring_send": (c.c_int, [ring, c.c_uint16, u64, c.c_char_p, c.c_uint32]),
        "ring_peek": (c.c_int, [ring, c.POINTER(Header)]),
        "ring_take": (None, [ring, c.c_void_p]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


LIBRARY = load()


def padded(len_bytes: int) -> int:
    return -(-len_bytes // LINE_BYTES) * LINE_BYTES


class Ring:
    """Both ends of a ring, and the memory they share."""

    def __init__(self, ring_bytes: int) -> None:
        self.ring_bytes = ring_bytes
        self._ring = c.c_void_p(LIBRARY.ring_new(ring_bytes))
        self.credit = LIBRARY.ring_credit(self._ring).contents
        self.memory = (c.c_ubyte * ring_bytes).from_address(LIBRARY.ring_bytes(self._ring))
        self.record = (c.c_ubyte * (MAX_RECORD_BYTES + 2 * LINE_BYTES))()

    def free(self) -> None:
        LIBRARY.ring_free(self._ring)

    @property
    def sent(self) -> int:
        return int(LIBRARY.ring_sent(self._ring))

    @property
    def taken(self) -> int:
        return int(LIBRARY.ring_taken(self._ring))

    def header_at(self, position: int) -> Header:
        return Header.from_buffer(self.memory, position % self.ring_bytes)

    def send(self, opcode: int, call_id: int, body: bytes) -> int:
        return int(LIBRARY.ring_send(self._ring, opcode, call_id, body, len(body)))

    def peek(self) -> tuple[int, Header]:
        header = Header()
        return int(LIBRARY.ring_peek(self._ring, header)), header

    def take(self, header: Header) -> bytes:
        """Take the peeked record; check that it was not written past its padded length."""
        c.memset(self.record, 0xA5, len(self.record))
        LIBRARY.ring_take(self._ring, self.record)
        written = padded(header.len_bytes)
        assert bytes(self.record[written:]) == b"\xa5" * (len(self.record) - written)
        return bytes(self.record[HEADER_BYTES : header.len_bytes])

    def publish(self) -> None:
        LIBRARY.ring_publish(self._ring)

    def room_for(self, body_bytes: int, credit: int) -> bool:
        """What PROTOCOL.md §3 says: record, the PAD before it, and the next commit word fit."""
        need = padded(HEADER_BYTES + body_bytes)
        to_end = self.ring_bytes - self.sent % self.ring_bytes
        total = need + (to_end if need > to_end else 0) + LINE_BYTES
        return self.sent + total - credit <= self.ring_bytes


@contextmanager
def open_ring(ring_bytes: int) -> Iterator[Ring]:
    ring = Ring(ring_bytes)
    try:
        yield ring
    finally:
        ring.free()


def body_of(seed: int, len_bytes: int) -> bytes:
    return random.Random(seed).randbytes(len_bytes)


lengths = st.one_of(
    st.integers(0, 200),
    st.integers(0, MAX_BODY_BYTES),
    st.sampled_from([31, 32, 33, 95, 96, 97, MAX_BODY_BYTES - 1, MAX_BODY_BYTES]),
)
u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))
ring_sizes = st.sampled_from(RING_SIZES_BYTES)


class HonestPeers(RuleBasedStateMachine):
    """Whatever the lengths, the laps and the moments of credit: all arrives, whole and in order."""

    def __init__(self) -> None:
        super().__init__()
        self.ring = Ring(RING_SIZES_BYTES[0])
        self.model: deque[tuple[int, int, bytes]] = deque()

    def teardown(self) -> None:
        self.ring.free()

    @rule(opcode=u16, call_id=u64, seed=u32, len_bytes=lengths)
    def send(self, opcode: int, call_id: int, seed: int, len_bytes: int) -> None:
        body = body_of(seed, len_bytes)
        fits = self.ring.room_for(len_bytes, self.ring.credit.value)
        assert self.ring.send(opcode, call_id, body) == (1 if fits else 0)
        if fits:
            self.model.append((opcode, call_id, body))

    @rule(n=st.integers(1, 20))
    def receive(self, n: int) -> None:
        for _ in range(n):
            found, header = self.ring.peek()
            assert found == (1 if self.model else 0)
            if not found:
                return
            assert (header.opcode, header.call_id, self.ring.take(header)) == self.model.popleft()

    @rule()
    def publish(self) -> None:
        self.ring.publish()

    @precondition(lambda self: not self.model)
    @rule(seed=u32, len_bytes=lengths)
    def empty_ring_takes_any_record(self, seed: int, len_bytes: int) -> None:
        self.receive(1)
        self.ring.publish()
        body = body_of(seed, len_bytes)
        assert self.ring.send(7, 8, body) == 1
        self.model.append((7, 8, body))

    @invariant()
    def positions_are_ordered(self) -> None:
        credit = self.ring.credit.value
        assert credit <= self.ring.taken <= self.ring.sent <= credit + self.ring.ring_bytes
        assert self.ring.taken - credit < self.ring.ring_bytes // 8 + MAX_RECORD_BYTES


TestHonestPeers = HonestPeers.TestCase


def run_ahead(ring: Ring, body_lengths: list[int]) -> None:
    """Put the ring somewhere in a lap: send, take and give back."""
    for len_bytes in body_lengths:
        assert ring.send(1, 2, bytes(len_bytes)) == 1
        found, header = ring.peek()
        assert found == 1
        ring.take(header)
        ring.publish()


@given(ring_sizes, st.lists(lengths, max_size=20), st.one_of(u64, st.integers(0, 400_000)))
def test_credit_backwards_or_past_what_was_sent_is_a_violation(
    ring_bytes: int, before: list[int], hostile: int
) -> None:
    with open_ring(ring_bytes) as ring:
        run_ahead(ring, before)
        while ring.send(1, 0, bytes(LINE_BYTES)) == 1:
            pass
        known, sent = ring.credit.value, ring.sent
        ring.credit.value = hostile
        # The longest record: for it the producer must look at the credit.
        answer = ring.send(1, 0, bytes(MAX_BODY_BYTES))
        if known <= hostile <= sent:
            assert answer == (1 if ring.sent > sent else 0)
            assert ring.sent - hostile <= ring_bytes
            return
        assert answer == BAD_CREDIT
        ring.credit.value = known  # too late: the error stays
        assert ring.send(1, 0, bytes(MAX_BODY_BYTES)) == BAD_CREDIT
        assert ring.sent == sent


hostile_lengths = st.one_of(
    u32, st.integers(0, MAX_RECORD_BYTES + 200), st.sampled_from([2**32 - 16])
)


@given(ring_sizes, st.lists(lengths, max_size=20), lengths, hostile_lengths, st.booleans())
def test_hostile_length_is_taken_as_said_or_a_violation(
    ring_bytes: int, before: list[int], len_bytes: int, hostile: int, pad: bool
) -> None:
    with open_ring(ring_bytes) as ring:
        run_ahead(ring, before)
        assume(ring_bytes - ring.sent % ring_bytes >= padded(HEADER_BYTES + len_bytes))
        position = ring.taken
        assert ring.send(9, 10, bytes(len_bytes)) == 1
        header = ring.header_at(position)
        header.len_bytes = hostile
        header.flags = PAD if pad else 0
        to_end = ring_bytes - position % ring_bytes
        found, peeked = ring.peek()
        if not HEADER_BYTES <= hostile <= MAX_RECORD_BYTES:
            assert found == BAD_LENGTH
        elif padded(hostile) > to_end or (pad and hostile != to_end):
            assert found == BAD_POSITION
        elif pad:
            assert (found, ring.taken) == (0, position + to_end)
            return
        else:
            assert (found, peeked.len_bytes) == (1, hostile)
            assert len(ring.take(peeked)) == hostile - HEADER_BYTES
            return
        assert ring.taken == position
        header.len_bytes, header.flags = HEADER_BYTES, 0  # too late: the error stays
        assert ring.peek()[0] == found


@given(ring_sizes, st.lists(lengths, max_size=20), lengths, u64)
def test_torn_commit_word_is_no_record(
    ring_bytes: int, before: list[int], len_bytes: int, torn: int
) -> None:
    with open_ring(ring_bytes) as ring:
        run_ahead(ring, before)
        assume(ring_bytes - ring.sent % ring_bytes >= padded(HEADER_BYTES + len_bytes))
        position = ring.taken
        body = body_of(torn, len_bytes)
        assert ring.send(9, 10, body) == 1
        header = ring.header_at(position)
        assert header.commit == position + 1
        header.commit = torn
        if torn != position + 1:
            assert ring.peek()[0] == 0
            assert ring.taken == position
        header.commit = position + 1
        found, peeked = ring.peek()
        assert (found, ring.take(peeked)) == (1, body)


@given(ring_sizes, lengths, u32, u16, u16, u64)
def test_header_changed_after_the_check_has_no_effect(
    ring_bytes: int, len_bytes: int, hostile: int, opcode: int, flags: int, call_id: int
) -> None:
    with open_ring(ring_bytes) as ring:
        assert ring.send(9, 10, bytes(len_bytes)) == 1
        found, peeked = ring.peek()
        assert found == 1
        header = ring.header_at(0)
        header.len_bytes, header.opcode, header.flags, header.call_id = (
            hostile,
            opcode,
            flags,
            call_id,
        )
        ring.take(peeked)
        taken = Header.from_buffer(ring.record)
        assert (taken.len_bytes, taken.opcode) == (HEADER_BYTES + len_bytes, 9)
        assert (taken.flags, taken.call_id) == (0, 10)
        assert ring.taken == padded(HEADER_BYTES + len_bytes)


@given(u32, st.lists(hostile_lengths, max_size=64), st.lists(u16, max_size=64))
def test_consumer_of_a_hostile_ring_stays_inside_it(
    seed: int, header_lengths: list[int], flags: list[int]
) -> None:
    """Random bytes, commit words that fit: each record is inside the ring, or the reading ends."""
    with open_ring(RING_SIZES_BYTES[1]) as ring:
        c.memmove(ring.memory, body_of(seed, ring.ring_bytes), ring.ring_bytes)
        for len_bytes, flag in zip(header_lengths, flags, strict=False):
            position = ring.taken
            header = ring.header_at(position)
            header.commit, header.len_bytes, header.flags = position + 1, len_bytes, flag
            found, peeked = ring.peek()
            if found < 0:
                assert ring.taken == position
                return
            if found == 1:
                end = ring.taken % ring.ring_bytes + padded(peeked.len_bytes)
                assert end <= ring.ring_bytes
                ring.take(peeked)
            assert position < ring.taken <= position + MAX_RECORD_BYTES
