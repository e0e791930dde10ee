# SPDX-License-Identifier: Apache-2.0
"""ptx_ops.toml says what the software GPU takes, and nothing else is taken.

That each listed form loads is what test_operations.py and test_control.py show.
"""

from __future__ import annotations

import re

import pytest
from software_gpu.gpu import INVALID_PTX, ROOT, CudaError, gpu
from software_gpu.rows import rows

REFUSED = [
    # textures and surfaces: what CUDA C++ does not make
    "tex.2d.v4.f32.s32 {f, f, f, f}, [d, {r, r}]",
    "tex.2d.v2.f16x2.f32 {r, r}, [d, {f, f}]",
    "tex.2dms.v4.f32.s32 {f, f, f, f}, [d, {r, r, r, r}]",
    "tex.level.grad.1d.v4.f32.f32 {f, f, f, f}, [d, {f}], {f}, {f}",
    "tex.2d.v4.f32.f32 {f, f, f, f}, [d, {f, f}], {r, r}",
    "tex.2d.v4.f32.f32 {f, f, f, f}, [d, {f}]",
    "tex.2d.v4.f32.f32 {f, f, f}, [d, {f, f}]",
    "tex.2d.v4.f32.f32 {f, f, f, f}, [d, d, {f, f}]",
    "tld4.r.cube.v4.f32.f32 {f, f, f, f}, [d, {f, f, f, f}]",
    "txq.channel_order.b32 r, [d]",
    "txq.filter_mode.b32 r, [d]",
    "suld.p.1d.v4.b32.trap {r, r, r, r}, [d, {r}]",
    "sust.p.1d.v4.b32.trap [d, {r}], {r, r, r, r}",
    "sured.b.add.1d.b32.trap [d, {r}], r",
    "suq.memory_layout.b32 r, [d]",
    "ld.global.u32 r, [d, {r}]",
    "ld.global.v2.u32 {r, r}|p, [d]",
    # matrices
    "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {f, f, f, f}, {r, r}, {r}, {f, f, f, f}",
    "wmma.load.a.sync.aligned.row.m16n16k16.f16 {r, r, r, r, r, r, r, r}, [d]",
    "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {r}, [r]",
    "wgmma.fence.sync.aligned",
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {f, f, f, f}, d, d, p, 1, 1, 0, 0",
    # asynchronous copies, TMA and its barriers
    "cp.async.cg.shared.global [r], [d], 8",
    "cp.async.ca.shared.global [r], [d], 16, r",
    "cp.async.mbarrier.arrive.shared.b64 [r]",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r], [d], r, [r]",
    "cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [d, {r}], [r]",
    "mbarrier.init.shared.b64 [r], 1",
    "fence.proxy.async",
    # clusters
    "barrier.cluster.arrive",
    "mapa.shared::cluster.u32 r, r, 0",
    "getctarank.shared::cluster.u32 r, r",
    "ld.shared::cluster.u32 r, [r]",
    # dynamic parallelism
    "griddepcontrol.wait",
    "griddepcontrol.launch_dependents",
    # newer than sm_80, or no instruction at all
    "elect.sync r|p, -1",
    "setmaxnreg.inc.sync.aligned.u32 32",
    "atom.global.add.v2.f32 {f, f}, [d], {f, f}",
    "redux.sync.add.f32 f, f, -1",
    "frobnicate.b32 r, r",
    # known opcodes with types and modifiers that they do not have
    "add.b32 r, r, r",
    "add.pred p, p, p",
    "add.sat.u32 r, r, r",
    "add.sat.f64 d, d, d",
    "add.ftz.f64 d, d, d",
    "add.rz.f16 h, h, h",
    "mul.u32 r, r, r",
    "mul.wide.u64 d, d, d",
    "fma.f32 f, f, f, f",
    "fma.rn.s32 r, r, r, r",
    "div.f64 d, d, d",
    "sqrt.f32 f, f",
    "sin.f32 f, f",
    "sin.approx.f64 d, d",
    "abs.u32 r, r",
    "and.u32 r, r, r",
    "popc.u32 r, r",
    "shl.u32 r, r, r",
    "lop3.b64 d, d, d, d, 1",
    "setp.lt.b32 p, r, r",
    "setp.lo.s32 p, r, r",
    "setp.equ.s32 p, r, r",
    "setp.eq.pred p, p, p",
    "cvt.f32.s32 f, r",
    "cvt.rn.s32.f32 r, f",
    "cvt.rni.s32.s32 r, r",
    "cvt.f32.f64 f, d",
    "cvt.rm.bf16.f32 h, f",
    "cvt.rn.rz.f32.f64 f, d",
    "cvt.rn.e4m3x2.f32 h, f, f",
    "ld.global.release.u32 r, [d]",
    "ld.pred p, [d]",
    "st.const.u32 [d], r",
    "st.global.acquire.u32 [d], r",
    "atom.global.add.s64 d, [d], d",
    "atom.global.min.f32 f, [d], f",
    "atom.local.add.u32 r, [d], r",
    "red.global.exch.b32 [d], r",
    "shfl.down.b32 r, r, 1, 31",
    "shfl.sync.down.b64 d, d, 1, 31, -1",
    "vote.all.pred p, p",
    "match.any.b32 r, r",
    "bar.sync.u32 0",
    "nanosleep.s32 20",
    "membar.gpu",
]


@pytest.mark.parametrize("instruction", REFUSED, ids=lambda text: text.split()[0])
def test_refused_with_instruction_and_line(instruction: str) -> None:
    with pytest.raises(CudaError) as caught:
        gpu().load(f""".visible .entry k() {{
  .reg .b16 h; .reg .b32 r, f; .reg .b64 d; .reg .pred p;
  {instruction};
  ret;
}}""")
    assert caught.value.code == INVALID_PTX
    opcode = instruction.split()[0]
    assert opcode in caught.value.log
    line = 6  # three lines of the header come first
    assert re.search(rf"\bline {line}\b", caught.value.log), caught.value.log


def test_every_decoder_is_listed() -> None:
    """An operation that no form names would be dead code; one without decoder is refused."""
    decoded = set()
    for path in (ROOT / "host/software_gpu").glob("ops_*.cpp"):
        text = path.read_text()
        decoded |= set(re.findall(r'(?:\bt|\(\*table\))\["(\w+)"\]', text))
        for names in re.findall(r"for \(const char\* name :\s*\{(.*?)\}\)", text, re.DOTALL):
            decoded |= set(re.findall(r'"(\w+)"', names))
    listed = {opcode for row in rows() for opcode in row.form.split()[0].split("|")}
    assert decoded == listed
