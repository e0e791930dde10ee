# SPDX-License-Identifier: Apache-2.0
"""Control frames: the wire form, the agreement with control.h, and hostile byte streams."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgpu.host import activity_frames as af
from kvgpu.host import control_frames as cf
from kvgpu.host import device_frames as df
from kvgpu.host.errors import ProtocolError

INCLUDE = Path(__file__).parents[2] / "protocol/include/kvgpu"
CONTROL_H = INCLUDE / "control.h"
T = TypeVar("T")

u16, u32, u64 = (st.integers(0, (1 << bits) - 1) for bits in (16, 32, 64))
i32 = st.integers(-(1 << 31), (1 << 31) - 1)
b16 = st.binary(min_size=16, max_size=16)
text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=200)


def plain_text(size_bytes: int) -> st.SearchStrategy[bytes]:
    return st.binary(max_size=size_bytes).map(lambda text: text.rstrip(b"\0"))


def several(each: st.SearchStrategy[T]) -> st.SearchStrategy[tuple[T, ...]]:
    return st.lists(each, max_size=64).map(tuple)


bodies = st.one_of(
    st.builds(cf.Hello, u16, u16, u32, b16),
    st.builds(cf.Welcome, u16, u16, u32, u64, b16),
    st.builds(cf.Open, u16, u16, u32, u64, u32, u32, b16),
    st.builds(cf.Opened, u16, u16, u32, u32, u32, u64, u64, u64),
    *(st.builds(body, i32, text) for body in (cf.Refused, cf.Closed, cf.Failed)),
    *(st.builds(body) for body in (cf.Close, cf.Kick, cf.Ping, cf.Pong, cf.End)),
    st.builds(cf.Ready, u32),
    st.builds(cf.ExtentAlloc, u64),
    st.builds(cf.Extent, u64, u64),
    st.builds(cf.ExtentFree, u64),
    st.builds(cf.Resumed, u16, u16, u32),
    st.builds(cf.Sessions, st.lists(u32, max_size=1024).map(tuple)),
    st.builds(df.DeviceQuery, u32, u32),
    st.builds(
        *(df.DeviceReport, u16, u16, u32, u32, u32, i32, u64, u64, b16),
        *(plain_text(size) for size in (16, 96, 32)),
        *(st.tuples(i32, i32), several(st.builds(df.DeviceProcess, u32, u16, u16, u64))),
        several(st.tuples(u32, u64)),
    ),
    st.builds(df.UsageQuery),
    st.builds(df.Usage, several(st.builds(df.DeviceUsage, u64, u64, u64))),
    st.builds(af.ActivityQuery),
    st.builds(
        *(af.Activity, u64, u64, u64, u64, u64, i32, plain_text(56), plain_text(56)),
        st.lists(st.tuples(plain_text(56), u64), max_size=61).map(tuple),
    ),
)
frames = st.builds(cf.Frame, bodies, u32)


@given(frames)
def test_encode_decode_is_identity(frame: cf.Frame) -> None:
    assert cf.decode(frame.encode()) == frame


def test_windows_agree_with_layout_h() -> None:
    found = re.search(r"WINDOWS\[\] = \{(.*?)\};", (INCLUDE / "layout.h").read_text(), re.S)
    assert found
    in_c = re.findall(r"(0x[0-9a-f]+)ull", found[1])
    assert [int(window, 16) for window in in_c] == list(cf.WINDOWS)


def test_types_and_sizes_agree_with_control_h() -> None:
    header = CONTROL_H.read_text() + (INCLUDE / "device_report.h").read_text()
    enum = re.search(r"enum class Type : uint16_t \{(.*?)\};", header, re.S)
    assert enum
    in_c = {name: int(value) for name, value in re.findall(r"(\w+) = (\d+)", enum[1])}
    in_python = {
        re.sub(r"(?<!^)(?=[A-Z])", "_", body.__name__).upper(): number
        for number, body in cf.BODIES.items()
    }
    carried = {name for name, number in in_c.items() if number in cf.STREAM_FORM_TYPES}
    assert len(carried) >= 7  # kvgpud does not look into these
    assert in_python == {name: in_c[name] for name in in_c.keys() - carried}
    assert f"FEATURE_BYTE_STREAM = 1u << {cf.FEATURE_BYTE_STREAM.bit_length() - 1}" in header
    assert f"MAX_STREAM_PAYLOAD_BYTES = {cf.MAX_STREAM_PAYLOAD_BYTES >> 10} * 1024" in header
    by_name = {body.__name__: body for body in cf.BODIES.values()}
    sizes = re.findall(r"static_assert\(sizeof\((\w+)\) == (\d+)\)", header)
    checked = {name for name, size in sizes if name in by_name}
    assert {"Hello", "Open", "Opened", "Extent", "DeviceReport", "Activity"} <= checked
    layouts = {name: body.LAYOUT for name, body in by_name.items()}
    layouts |= {part.__name__: part.LAYOUT for part in (df.DeviceProcess, df.DeviceUsage)}
    for name, size in sizes:
        if name in layouts:
            assert layouts[name].size == int(size), name
    assert f"{cf.MAGIC:#x}" in header
    assert f"MAX_PAYLOAD_BYTES = {cf.MAX_PAYLOAD_BYTES}" in header
    assert f"PROTOCOL_MINOR = {cf.PROTOCOL_MINOR}" in header


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\0" * 16,
        cf.Frame(cf.Kick()).encode()[:-1],
        cf.Frame(cf.Kick()).encode() + b"x",
        cf.HEADER.pack(cf.MAGIC, 99, 0, 0, 0),
        cf.HEADER.pack(cf.MAGIC, cf.Open.TYPE, 0, 39, 0) + b"\0" * 39,
    ],
)
def test_malformed_message_is_refused(message: bytes) -> None:
    with pytest.raises(ProtocolError):
        cf.decode(message)


def test_longer_payload_of_a_newer_peer_is_accepted() -> None:
    message = cf.HEADER.pack(cf.MAGIC, cf.Ready.TYPE, 0, 8, 7) + struct.pack("<II", 3, 4)
    assert cf.decode(message) == cf.Frame(cf.Ready(3), 7)


def test_long_message_is_cut_to_the_payload_limit() -> None:
    assert len(cf.Frame(cf.Closed(1, "x" * 10000)).encode()) == cf.MAX_FRAME_BYTES


@given(st.lists(frames, max_size=5), st.integers(1, 50))
def test_stream_in_pieces_yields_the_frames(sent: list[cf.Frame], piece_bytes: int) -> None:
    stream = b"".join(frame.encode() for frame in sent)
    decoder = cf.StreamDecoder("test")
    got = [
        frame
        for start in range(0, len(stream), piece_bytes)
        for frame in decoder.feed(stream[start : start + piece_bytes])
    ]
    assert got == sent


@given(st.binary(max_size=64).filter(lambda junk: b"K" not in junk), frames)
def test_stream_resynchronises_after_garbage(junk: bytes, frame: cf.Frame) -> None:
    decoder = cf.StreamDecoder("test")
    assert list(decoder.feed(junk + frame.encode())) == [frame]


def test_stream_skips_a_header_with_an_absurd_length() -> None:
    decoder = cf.StreamDecoder("test")
    bad = cf.HEADER.pack(cf.MAGIC, 1, 0, 1 << 31, 0)
    assert list(decoder.feed(bad + cf.Frame(cf.Ping(), 5).encode())) == [cf.Frame(cf.Ping(), 5)]


@given(st.binary(max_size=4096))
def test_any_bytes_are_survived_and_the_buffer_stays_bounded(junk: bytes) -> None:
    decoder = cf.StreamDecoder("test")
    list(decoder.feed(junk))
    assert len(decoder._buffer) <= cf.MAX_FRAME_BYTES


NO_LENGTH = cf.HEADER.pack(cf.MAGIC, 1, 0, 1 << 31, 0)


@pytest.mark.parametrize(
    ("piece", "n_pieces"),
    [
        (cf.Frame(cf.Ping()).encode(), 100),
        (struct.pack("<I", cf.MAGIC), 97),  # the last ones may be a header yet
        (NO_LENGTH, 199),  # the magic, and what follows it
        (cf.HEADER.pack(cf.MAGIC, 99, 0, 0, 0), 100),
        (cf.HEADER.pack(cf.MAGIC, cf.Open.TYPE, 0, 0, 0), 100),
        (b"x" * 256, 101),
    ],
    ids=["frame", "magic", "length", "type", "payload", "noise"],
)
def test_all_that_makes_work_is_counted(piece: bytes, n_pieces: int) -> None:
    decoder = cf.StreamDecoder("test")
    n_frames = len(list(decoder.feed(piece * 100)))
    assert n_frames == (100 if piece == cf.Frame(cf.Ping()).encode() else 0)
    assert decoder.n_pieces == pytest.approx(n_pieces, abs=1)
