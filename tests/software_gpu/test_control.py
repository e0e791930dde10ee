# SPDX-License-Identifier: Apache-2.0
"""The forms of ptx_ops.toml without operands there: what they do in a kernel of 64 threads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
from software_gpu.gpu import CudaError, gpu
from software_gpu.rows import IMAGES, Form, Row, rows

N = 64
LAUNCH_FAILED, ILLEGAL_INSTRUCTION = 719, 715

# By opcode: code that leaves a value in `r` (thread's number: `tid`) and what the value must be.
BODIES: dict[str, tuple[str, Callable[[int], int]]] = {
    "membar": ("{op}; mov.u32 r, 7;", lambda tid: 7),
    "fence": ("{op}; mov.u32 r, 7;", lambda tid: 7),
    "prefetch": ("{op} [to]; mov.u32 r, 7;", lambda tid: 7),
    "prefetchu": ("{op} [to]; mov.u32 r, 7;", lambda tid: 7),
    "nanosleep": ("{op} 20; mov.u32 r, 7;", lambda tid: 7),
    "pmevent": ("{op} 1; mov.u32 r, 7;", lambda tid: 7),
    "activemask": ("{op} r;", lambda tid: 0xFFFFFFFF),
    "bra": ("mov.u32 r, 1; {op} DONE; mov.u32 r, 2; DONE:", lambda tid: 1),
    "brx": (
        "and.b32 s, tid, 1; list: .branchtargets A, B; {op} s, list;"
        "A: mov.u32 r, 5; bra DONE; B: mov.u32 r, 6; DONE:",
        lambda tid: 5 + tid % 2,
    ),
    "call": (
        "{{ .param .b32 x; .param .b32 y; st.param.b32 [x], tid;"
        "{op} (y), twice, (x); ld.param.b32 r, [y]; }}",
        lambda tid: 2 * tid,
    ),
    "ret": ("st.global.u32 [to], 5; {op}; mov.u32 r, 6;", lambda tid: 5),
    "exit": ("st.global.u32 [to], 5; {op}; mov.u32 r, 6;", lambda tid: 5),
}
EXCHANGE = """
    mov.u32 s, cells; mad.lo.u32 s, tid, 4, s; st.shared.u32 [s], tid;
    setp.lt.u32 p, tid, 32; {first} {second}
    xor.b32 s, s, 128; {last} ld.shared.u32 r, [s];
"""
REDUCTIONS: dict[str, Callable[[int], int]] = {
    "popc": lambda _: 40,
    "and": lambda _: 0,
    "or": lambda _: 1,
}


def barrier(form: Form) -> tuple[str, Callable[[int], int]]:
    if form.has("warp"):
        code = "{op} -1;"
        return EXCHANGE.format(first=code, second="", last="bar.sync 0;"), lambda tid: tid ^ 32
    if form.has("red"):
        kind = form.one_of(*REDUCTIONS)
        result = "r" if kind == "popc" else "q"
        after = "" if kind == "popc" else "selp.u32 r, 1, 0, q;"
        return f"setp.lt.u32 p, tid, 40; {{op}} {result}, 0, p; {after}", REDUCTIONS[kind]
    # One warp comes by the instruction, the other waits for it.
    both = EXCHANGE.format(
        first="@p {op} 1, 64;", second="@!p bar.sync 1, 64;", last="@p bar.sync 2, 32;"
    )
    if form.has("arrive"):  # and does not wait: only the second warp may read
        return both, lambda tid: tid ^ 32 if tid >= 32 else -1
    return both, lambda tid: tid ^ 32


def address_of(form: Form) -> str:
    """Code that leaves an address in the form's space in `a`, the same as a generic one in `b`."""
    space = form.one_of("shared", "local")
    if not space:
        return "mov.u64 a, to; mov.u64 b, to;"
    return f"mov.u64 a, {'cells' if space == 'shared' else 'mine'}; cvta.{space}.u64 b, a;"


def copying(form: Form) -> tuple[str, Callable[[int], int]]:
    """Each fourth thread copies 16 bytes, 8 of them from memory; or waits for what was copied."""
    start = "st.global.u32 [to], tid; bar.sync 0; mov.u32 s, cells; mad.lo.u32 s, tid, 4, s;"
    if not form.has("shared") and not form.has("shared::cta"):
        number = " 0" if form.has("wait_group") else ""
        copy = f"cp.async.ca.shared.global [s], [to], 4; cp.async.commit_group; {{op}}{number};"
        return f"{start} {copy} cp.async.wait_all; ld.shared.u32 r, [s];", lambda tid: tid
    copy = "and.b32 r, tid, 3; setp.eq.u32 p, r, 0; @p {op} [s+0], [to], 16, 8; cp.async.wait_all;"
    after = "bar.sync 0; ld.shared.u32 r, [s];"
    return f"{start} {copy} {after}", lambda tid: tid if tid % 4 < 2 else 0


def addressing(form: Form) -> tuple[str, Callable[[int], int]]:
    if form.opcode == "isspacep":
        return f"{address_of(form)} {{op}} q, b; selp.u32 r, 3, 4, q;", lambda tid: 3
    source, wanted = ("b", "a") if form.has("to") else ("a", "b")
    code = f"{address_of(form)} {{op}} c, {source}; setp.eq.u64 q, c, {wanted};"
    return code + "selp.u32 r, 3, 4, q;", lambda tid: 3


def body(form: Form) -> tuple[str, Callable[[int], int]]:
    if form.opcode in ("bar", "barrier"):
        return barrier(form)
    if form.opcode == "cp":
        return copying(form)
    if form.opcode in ("cvta", "isspacep"):
        return addressing(form)
    return BODIES[form.opcode]


def run(code: str) -> list[int]:
    module = gpu().load(f"""
.func (.param .b32 y) twice(.param .b32 x) {{
  .reg .b32 r; ld.param.u32 r, [x]; shl.b32 r, r, 1; st.param.b32 [y], r; ret; }}
.visible .entry k(.param .u64 out) {{
  .reg .b64 to, offset, a, b, c; .reg .b32 tid, r, s; .reg .pred p, q;
  .shared .align 16 .b8 cells[{4 * N}]; .local .align 16 .b8 mine[16];
  ld.param.u64 to, [out]; mov.u32 tid, %tid.x; mul.wide.u32 offset, tid, 4;
  add.u64 to, to, offset;
  {code}
  st.global.u32 [to], r;
  ret; }}""")
    pointer = gpu().allocate(4 * N)
    try:
        gpu().launch(module, "k", N, 1, ctypes.c_uint64(pointer))
        data = gpu().read(pointer, 4 * N)
        return [int.from_bytes(data[i : i + 4], "little") for i in range(0, 4 * N, 4)]
    finally:
        gpu().free(pointer)
        gpu().unload(module)


PLAIN = [
    row
    for row in rows()
    if not row.operands and row.form not in ("trap", "brkpt") and row.opcodes.isdisjoint(IMAGES)
]


@pytest.mark.parametrize("row", PLAIN, ids=lambda row: row.name)
def test_effect(row: Row) -> None:
    for form in row.forms():
        code, expected = body(form)
        got = run(code.replace("{{", "{").replace("}}", "}").replace("{op}", form.text))
        for tid, value in enumerate(got):
            assert expected(tid) in (-1, value), f"{form.text}, thread {tid}: {value}"


@pytest.mark.parametrize("opcode", ["trap", "brkpt"])
def test_trap_ends_the_kernel_and_the_context(opcode: str) -> None:
    with pytest.raises(CudaError) as caught:
        run(f"{opcode}; mov.u32 r, 1;")
    assert caught.value.code in (LAUNCH_FAILED, ILLEGAL_INSTRUCTION)
    gpu().call("cuDevicePrimaryCtxReset_v2", 0)
    gpu.cache_clear()
    assert run("mov.u32 r, 1;") == [1] * N


def read_twice(register: str, bits: int) -> list[int]:
    return run(f"""
  .reg .b{bits} t, u; mov.u{bits} t, {register}; nanosleep.u32 100; mov.u{bits} u, {register};
  setp.le.u{bits} p, t, u; selp.u32 r, 1, 0, p;""")


@pytest.mark.parametrize(
    ("register", "bits"), [("%clock", 32), ("%clock64", 64), ("%globaltimer", 64)]
)
def test_clocks_go_forward(register: str, bits: int) -> None:
    assert read_twice(register, bits) == [1] * N


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("mov.u32 s, 9; mov.b64 a, {tid, s}; shr.u64 a, a, 1; mov.b64 {r, s}, a;", (1 << 31, 0)),
        ("mov.b32 {h, g}, tid; add.u16 h, h, 3; mov.b32 r, {g, h};", (3 << 16, 1 << 16)),
    ],
)
def test_vectors_are_packed_from_the_low_end(code: str, expected: tuple[int, int]) -> None:
    first, step = expected
    values = [first + (step * tid if step else tid // 2) for tid in range(N)]
    assert run(f".reg .b16 g, h; {code}") == values


def test_immediates_of_all_kinds() -> None:
    assert (
        run("""
  .reg .b32 f; .reg .b64 d;
  mov.f32 f, 0f40000000; add.f32 f, f, 0.5; cvt.rzi.s32.f32 r, f; add.s32 r, r, -3;
  mov.f64 d, 0d4008000000000000; cvt.rzi.s32.f64 s, d; mad.lo.s32 r, r, 0x10, s;
  add.u32 r, r, 0b101; add.u32 r, r, 010;""")
        == [(2 - 3) * 16 + 3 + 5 + 8] * N
    )


def test_predicated_instructions() -> None:
    got = run("setp.lt.u32 p, tid, 10; mov.u32 r, 1; @p mov.u32 r, 2; @!p add.u32 r, r, 5;")
    assert got == [2 if tid < 10 else 6 for tid in range(N)]
