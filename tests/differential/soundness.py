# SPDX-License-Identifier: Apache-2.0
"""Whether a driver still works after a call that may have broken it."""

from __future__ import annotations

import ctypes

from differential.scene_base import Base

KERNEL = b""".version 7.0
.target sm_52
.address_size 64
.visible .entry sing(.param .u64 where, .param .u32 note)
{
  .reg .u32 %r;
  .reg .u64 %a;
  ld.param.u64 %a, [where];
  ld.param.u32 %r, [note];
  cvta.to.global.u64 %a, %a;
  st.global.u32 [%a], %r;
  ret;
}
\0"""


class Canary:
    """A kernel in the primary context that stores a number, a new one at each time."""

    def __init__(self, cuda: ctypes.CDLL) -> None:
        base = Base(cuda, "")
        self.cuda = cuda
        self.kernel = base.made(
            "cuModuleGetFunction", base.made("cuModuleLoadData", KERNEL), b"sing"
        )
        self.stream = base.stream
        self.note = ctypes.c_uint32(0)

    def lives(self) -> bool:
        """Whether memory, a launch and a copy work in the current context."""
        memory, heard = ctypes.c_uint64(), ctypes.c_uint32()
        self.note.value += 1
        pointers = (ctypes.c_void_p * 2)(ctypes.addressof(memory), ctypes.addressof(self.note))
        size = ctypes.c_size_t(4)
        works = (
            self.cuda.cuMemAlloc_v2(ctypes.byref(memory), size) == 0
            and self.cuda.cuLaunchKernel(self.kernel, *[1] * 6, 0, self.stream, pointers, None) == 0
            and self.cuda.cuStreamSynchronize(self.stream) == 0
            and self.cuda.cuMemcpyDtoH_v2(ctypes.byref(heard), memory, size) == 0
            and self.cuda.cuMemFree_v2(memory) == 0
        )
        return works and heard.value == self.note.value
