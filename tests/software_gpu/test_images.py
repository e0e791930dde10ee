# SPDX-License-Identifier: Apache-2.0
"""Texture and surface instructions in PTX: each listed form, queries, reductions, and faults.

What they read and write in each shape, tests/loopback/cases/{textures,surfaces}.cpp say.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from ctypes import byref, c_size_t, c_uint64, c_void_p

import pytest
from software_gpu.cuda_cpp import reset
from software_gpu.gpu import INVALID_PTX, CudaError, gpu
from software_gpu.rows import IMAGES, Form, rows

UINT32, FLOAT = 3, 0x20
LAYERED, SURFACE = 1, 2
NORMALIZED = 2
ILLEGAL_ADDRESS = 700
N_COORDINATES = {"1d": 1, "2d": 2, "3d": 4, "a1d": 2, "a2d": 4, "cube": 4, "acube": 4}
REGISTER = {"f32": "f", "s32": "r", "u32": "r", "b32": "r", "b8": "h", "b16": "h"}


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    reset()


def vector(register: str, n: int) -> str:
    return "{" + ", ".join([register] * n) + "}"


def instruction(form: Form) -> str:
    """Write the form with operands."""
    geometry = form.one_of(*N_COORDINATES)
    if form.opcode in ("txq", "suq"):
        return f"{form.text} r, [d]" + (", r" if form.has("level") else "")
    register = REGISTER.get(form.types[0], "d")
    n = N_COORDINATES[geometry]
    if form.opcode in ("suld", "sust", "sured"):
        value = vector(register, 4 if form.has("v4") else 2 if form.has("v2") else 1)
        place = f"[d, {vector('r', n)}]"
        return (
            f"{form.text} {value}, {place}"
            if form.opcode == "suld"
            else f"{form.text} {place}, {value}"
        )
    at = [REGISTER[form.types[1]]] * n
    if geometry.startswith("a"):
        at[0] = "r"
    text = f"{form.text} {vector(register, 4)}, [d, {{{', '.join(at)}}}]"
    if form.has("level"):
        text += ", f"
    if form.has("grad"):
        gradient = vector("f", {"1": 1, "2": 2}.get(geometry[-2], 4))
        text += f", {gradient}, {gradient}"
    return text


@pytest.mark.parametrize("opcode", sorted(IMAGES))
def test_each_listed_form_is_taken(opcode: str) -> None:
    listed = (row for row in rows() if opcode in row.opcodes)
    forms = [form for row in listed for form in row.forms() if form.opcode == opcode]
    assert forms
    body = "\n".join(f"  {instruction(form)};" for form in forms)
    gpu().unload(
        gpu().load(f""".visible .entry k() {{
  .reg .b16 h; .reg .b32 r, f; .reg .b64 d;
{body}
  ret;
}}""")
    )


class Array:
    def __init__(self, width: int, height: int, depth: int, form: int, flags: int) -> None:
        descriptor = struct.pack("<QQQIII4x", width, height, depth, form, 1, flags)
        self.handle = c_void_p()
        gpu().call("cuArray3DCreate_v2", byref(self.handle), descriptor)

    def object(self, name: str, *more: object) -> c_uint64:
        """Create a texture or surface object; CUDA_RESOURCE_DESC is of 144 bytes."""
        handle = c_uint64()
        gpu().call(name, byref(handle), struct.pack("<I4xQ128x", 0, self.handle.value), *more)
        return handle


def texture(array: Array, flags: int = 0) -> c_uint64:
    return array.object("cuTexObjectCreate", struct.pack("<IIIII108x", 1, 1, 1, 0, flags), None)


def run(body: str, handle: c_uint64, n_words: int = 8) -> list[int]:
    """Run a kernel of one thread that has the handle in %d and the address of words in %to."""
    device = gpu()
    module = device.load(f""".visible .entry k(.param .u64 image, .param .u64 words) {{
  .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b64 %d, %to, %l<4>; .reg .pred %p;
  ld.param.u64 %d, [image];
  ld.param.u64 %to, [words];
{body}
  ret;
}}""")
    words = device.allocate(4 * n_words)
    device.write(words, bytes(4 * n_words))
    try:
        device.launch(module, "k", 1, 1, handle, c_uint64(words))
        return list(struct.unpack(f"<{n_words}I", device.read(words, 4 * n_words)))
    finally:
        device.unload(module)


def test_queries_tell_the_shape() -> None:
    array = Array(40, 30, 5, FLOAT, LAYERED | SURFACE)
    names = ("width", "height", "depth", "array_size")
    asked = [
        f"  {{op}}.{name}.b32 %r1, [%d];\n  st.u32 [%to+{4 * i}], %r1;"
        for i, name in enumerate(names)
    ]
    body = "\n".join(asked)
    more = """
  txq.num_mipmap_levels.b32 %r1, [%d];
  st.u32 [%to+16], %r1;
  txq.normalized_coords.b32 %r1, [%d];
  st.u32 [%to+20], %r1;"""
    got = run(body.format(op="txq") + more, texture(array, NORMALIZED))
    assert got[:6] == [40, 30, 1, 5, 1, 1]
    assert run(body.format(op="suq"), array.object("cuSurfObjectCreate"))[:4] == [40, 30, 1, 5]


def test_a_texel_says_that_memory_is_behind_it() -> None:
    array = Array(4, 4, 0, FLOAT, 0)
    body = """
  mov.f32 %f5, 0f3F000000;
  tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}|%p, [%d, {%f5, %f5}];
  selp.u32 %r1, 7, 8, %p;
  st.u32 [%to], %r1;"""
    assert run(body, texture(array))[0] == 7


def test_reductions_on_a_surface() -> None:
    array = Array(8, 0, 0, UINT32, SURFACE)
    start = struct.pack("<8I", 5, 5, 5, 0xF0, 0xF0, 0xFFFFFFFF, 0, 0)
    gpu().call("cuMemcpyHtoA_v2", array.handle, c_size_t(0), start, c_size_t(32))
    body = """
  mov.u32 %r1, 9;
  mov.u32 %r2, -2;
  mov.u64 %l1, 0x100000001;
  mov.u32 %r3, 0; sured.b.add.1d.u32.trap [%d, {%r3}], {%r1};
  mov.u32 %r3, 4; sured.b.min.1d.s32.trap [%d, {%r3}], {%r2};
  mov.u32 %r3, 8; sured.b.max.1d.u32.trap [%d, {%r3}], %r2;
  mov.u32 %r3, 12; sured.b.and.1d.b32.trap [%d, {%r3}], {%r2};
  mov.u32 %r3, 16; sured.b.or.1d.b32.trap [%d, {%r3}], {%r1};
  mov.u32 %r3, 24; sured.b.add.1d.u64.trap [%d, {%r3}], {%l1};
  mov.u32 %r3, 400; sured.b.add.1d.u32.zero [%d, {%r3}], {%r1};
  mov.u32 %r3, 400; sured.b.add.1d.u32.clamp [%d, {%r3}], {%r1};"""
    run(body, array.object("cuSurfObjectCreate"))
    got = ctypes.create_string_buffer(32)
    gpu().call("cuMemcpyAtoH_v2", got, array.handle, c_size_t(0), c_size_t(32))
    expected = (14, 0xFFFFFFFE, 0xFFFFFFFE, 0xF0, 0xF9, 0xFFFFFFFF, 1, 10)
    assert struct.unpack("<8I", got.raw) == expected


FETCH = """
  mov.f32 %f5, 0f3F000000;
  tex.1d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%d, {%f5}];"""
LOAD = """
  mov.u32 %r1, 0;
  suld.b.1d.b32.zero {%r2}, [%d, {%r1}];"""


@pytest.mark.parametrize("body", [FETCH, LOAD], ids=["tex", "suld"])
def test_what_is_no_handle_is_a_fault(body: str) -> None:
    with pytest.raises(CudaError) as caught:
        run(body, c_uint64(0x123456789))
    assert caught.value.code == ILLEGAL_ADDRESS


def test_a_surface_is_no_texture() -> None:
    array = Array(4, 0, 0, FLOAT, SURFACE)
    with pytest.raises(CudaError) as caught:
        run(FETCH, array.object("cuSurfObjectCreate"))
    assert caught.value.code == ILLEGAL_ADDRESS


def test_a_texture_of_an_array_that_is_gone_is_a_fault() -> None:
    array = Array(4, 0, 0, FLOAT, 0)
    handle = texture(array)
    gpu().call("cuArrayDestroy", array.handle)
    with pytest.raises(CudaError) as caught:
        run(FETCH, handle)
    assert caught.value.code == ILLEGAL_ADDRESS


def test_an_access_that_is_not_aligned_to_its_size_is_a_fault() -> None:
    array = Array(8, 0, 0, UINT32, SURFACE)
    with pytest.raises(CudaError) as caught:
        run(LOAD.replace("0;", "2;", 1), array.object("cuSurfObjectCreate"))
    assert caught.value.code == ILLEGAL_ADDRESS


@pytest.mark.parametrize(
    "declaration",
    [
        ".global .texref many[4];",
        ".global .samplerref how;",
        ".const .texref place;",
        ".global .texref t = { width = 4 };",
    ],
)
def test_references_of_other_kinds_are_refused(declaration: str) -> None:
    with pytest.raises(CudaError) as caught:
        gpu().load(declaration + "\n.visible .entry k() { ret; }")
    assert caught.value.code == INVALID_PTX


def test_formats_that_are_not_done_are_refused() -> None:
    not_supported = 801
    for form in (0xB0, 0x91):
        with pytest.raises(CudaError) as caught:
            Array(64, 64, 0, form, 0)
        assert caught.value.code == not_supported
