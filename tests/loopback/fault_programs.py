# SPDX-License-Identifier: Apache-2.0
"""Programs that do wrong, and say what each call then gives: the same natively and through kvgpu.

python fault_programs.py NAME: the driver's API by ctypes. Lines that begin with # may differ.
"""

from __future__ import annotations

import ctypes
import sys

PTX = b"""
.version 7.0
.target sm_80
.address_size 64
.extern .func __assertfail(
  .param .b64 m, .param .b64 f, .param .b32 l, .param .b64 n, .param .b64 s);
.global .align 1 .b8 text[8] = {98, 114, 111, 107, 101, 110, 0, 0};
.visible .entry store(.param .u64 p) {
  .reg .u64 %a<2>;
  ld.param.u64 %a1, [p];
  st.global.u32 [%a1], 5;
  ret;
}
.visible .entry traps(.param .u64 p) {
  trap;
  ret;
}
.visible .entry asserts(.param .u64 p) {
  .reg .u64 %a<2>;
  mov.u64 %a1, text;
  cvta.global.u64 %a1, %a1;
  {
    .param .b64 m;
    .param .b64 f;
    .param .b32 l;
    .param .b64 n;
    .param .b64 s;
    st.param.b64 [m], %a1;
    st.param.b64 [f], %a1;
    st.param.b32 [l], 7;
    st.param.b64 [n], %a1;
    st.param.b64 [s], 1;
    call.uni __assertfail, (m, f, l, n, s);
  }
  ret;
}
.func (.param .b32 result) deeper(.param .b64 p, .param .b32 n) {
  .local .align 8 .b8 depot[1024];
  .reg .u64 %a<5>;
  .reg .u32 %r<5>;
  .reg .pred %q;
  ld.param.u64 %a1, [p];
  ld.param.u32 %r1, [n];
  mov.u64 %a2, depot;
  cvta.local.u64 %a3, %a2;
  and.b32 %r2, %r1, 127;
  mul.wide.u32 %a4, %r2, 8;
  add.u64 %a4, %a3, %a4;
  st.volatile.u32 [%a4], %r1;
  setp.eq.u32 %q, %r1, 0;
  @%q bra DONE;
  {
    .param .b64 pp;
    .param .b32 nn;
    .param .b32 back;
    sub.u32 %r3, %r1, 1;
    st.param.b64 [pp], %a3;
    st.param.b32 [nn], %r3;
    call.uni (back), deeper, (pp, nn);
    ld.param.b32 %r3, [back];
  }
  ld.volatile.u32 %r4, [%a4];
  add.u32 %r1, %r3, %r4;
DONE:
  st.param.b32 [result], %r1;
  ret;
}
.visible .entry recurses(.param .u64 p) {
  .reg .u64 %a<2>;
  .reg .u32 %r<2>;
  ld.param.u64 %a1, [p];
  {
    .param .b64 pp;
    .param .b32 nn;
    .param .b32 back;
    st.param.b64 [pp], %a1;
    st.param.b32 [nn], 1000000;
    call.uni (back), deeper, (pp, nn);
    ld.param.b32 %r1, [back];
  }
  st.global.u32 [%a1], %r1;
  ret;
}
.visible .entry spins(.param .u64 p) {
  .reg .u64 %a<2>;
  .reg .u32 %r<2>;
  .reg .pred %q;
  ld.param.u64 %a1, [p];
AGAIN:
  ld.volatile.global.u32 %r1, [%a1];
  setp.eq.u32 %q, %r1, 0;
  @%q bra AGAIN;
  ret;
}
"""
MIB = 1 << 20

cuda = ctypes.CDLL("libcuda.so.1")


def say(*words: object) -> None:
    print(*words, flush=True)


def size(n_bytes: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(n_bytes)


class World:
    """A context, some memory, a stream, an event, a module."""

    def __init__(self) -> None:
        self.context = self.made("cuDevicePrimaryCtxRetain", 0)
        assert cuda.cuCtxSetCurrent(self.context) == 0
        self.module = self.made("cuModuleLoadData", PTX)
        self.memory = self.made("cuMemAlloc_v2", size(4096))
        self.stream = self.made("cuStreamCreate", 1)
        self.event = self.made("cuEventCreate", 2)
        assert cuda.cuMemsetD8_v2(self.memory, 0, size(4096)) == 0
        assert cuda.cuCtxSynchronize() == 0

    def made(self, name: str, *arguments: object) -> ctypes.c_uint64:
        assert cuda.cuInit(0) == 0
        value = ctypes.c_uint64()
        result = getattr(cuda, name)(ctypes.byref(value), *arguments)
        assert result == 0, (name, result)
        return value

    def launch(self, kernel: bytes, address: int) -> int:
        function = self.made("cuModuleGetFunction", self.module, kernel)
        value = ctypes.c_uint64(address)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        shape = (1, 1, 1, 1, 1, 1, 0)
        result: int = cuda.cuLaunchKernel(function, *shape, self.stream, parameters, None)
        return result

    def after(self) -> None:
        """What the calls of all kinds say from now on."""
        value, other = ctypes.c_uint64(), (ctypes.c_uint64 * 2)()
        for name, arguments in {
            "cuCtxSynchronize": (),
            "cuStreamSynchronize": (self.stream,),
            "cuStreamQuery": (self.stream,),
            "cuMemAlloc_v2": (ctypes.byref(value), size(64)),
            "cuMemFree_v2": (self.memory,),
            "cuMemcpyDtoH_v2": (other, self.memory, size(16)),
            "cuMemcpyHtoDAsync_v2": (self.memory, other, size(16), self.stream),
            "cuMemsetD8Async": (self.memory, 1, size(16), self.stream),
            "cuEventRecord": (self.event, self.stream),
            "cuEventQuery": (self.event,),
            "cuEventSynchronize": (self.event,),
            "cuStreamCreate": (ctypes.byref(value), 1),
            "cuModuleLoadData": (ctypes.byref(value), PTX),
            "cuMemHostAlloc": (ctypes.byref(value), size(64), 0),
            "cuStreamWaitEvent": (self.stream, self.event, 0),
            "cuGraphCreate": (ctypes.byref(value), 0),
            "cuMemGetInfo_v2": (ctypes.byref(value), ctypes.byref(ctypes.c_uint64())),
            "cuDeviceGetAttribute": (ctypes.byref(value), 1, 0),
            "cuCtxGetCurrent": (ctypes.byref(value),),
            "cuEventDestroy_v2": (self.event,),
            "cuStreamDestroy_v2": (self.stream,),
        }.items():
            # No GPU is in a graph's making.
            place = "#" if name == "cuGraphCreate" else ""
            say(place + name, getattr(cuda, name)(*arguments))


def _fault(kernel: bytes, offset: int | None) -> None:
    world = World()
    address = 0x10 if offset is None else world.memory.value + offset
    say("launch", world.launch(kernel, address))
    say("synchronise", cuda.cuStreamSynchronize(world.stream))
    world.after()


def illegal_address() -> None:
    _fault(b"store", None)


def misaligned() -> None:
    _fault(b"store", 1)


def trap() -> None:
    _fault(b"traps", 0)


def assertion() -> None:
    _fault(b"asserts", 0)


def stack_overflow() -> None:
    _fault(b"recurses", 0)


def out_of_memory() -> None:
    world = World()
    value = ctypes.c_uint64()
    say("huge", cuda.cuMemAlloc_v2(ctypes.byref(value), size(1 << 46)))
    held = []
    while (result := cuda.cuMemAlloc_v2(ctypes.byref(value), size(512 * MIB))) == 0:
        held.append(value.value)
        if len(held) == 8192:
            break
    say("#", len(held), "pieces of 512 MiB")
    say("full", result)
    say("again", cuda.cuMemAlloc_v2(ctypes.byref(value), size(512 * MIB)))
    say("freed", {cuda.cuMemFree_v2(ctypes.c_uint64(one)) for one in held[:2]})
    say("once more", cuda.cuMemAlloc_v2(ctypes.byref(value), size(512 * MIB)))
    say("launch", world.launch(b"store", world.memory.value))
    say("synchronise", cuda.cuCtxSynchronize())


def double_free() -> None:
    world = World()
    other = world.made("cuMemHostAlloc", size(4096), 0)
    say("free", cuda.cuMemFree_v2(world.memory), cuda.cuMemFree_v2(world.memory))
    say("free of host memory", cuda.cuMemFreeHost(other), cuda.cuMemFreeHost(other))
    say("free of the middle", cuda.cuMemFree_v2(world.made("cuMemAlloc_v2", size(64)).value + 4))
    say("synchronise", cuda.cuCtxSynchronize())


def after_free() -> None:
    """Memory that is used when it has gone: by a copy, and by a kernel."""
    world = World()
    memory = world.made("cuMemAlloc_v2", size(64 * MIB))  # a mapping of its own
    say("free", cuda.cuMemFree_v2(memory))
    other = (ctypes.c_uint64 * 2)()
    say("copy", cuda.cuMemcpyDtoH_v2(other, memory, size(16)))
    say("set", cuda.cuMemsetD8_v2(memory, 1, size(16)))
    say("launch", world.launch(b"store", memory.value))
    say("synchronise", cuda.cuStreamSynchronize(world.stream))
    world.after()


def infinite() -> None:
    """Ends when it is killed."""
    world = World()
    assert world.launch(b"spins", world.memory.value) == 0
    say("ready")
    say("synchronise", cuda.cuCtxSynchronize())


def works() -> None:
    world = World()
    assert world.launch(b"store", world.memory.value) == 0
    value = (ctypes.c_uint32 * 2)()
    assert cuda.cuStreamSynchronize(world.stream) == 0
    assert cuda.cuMemcpyDtoH_v2(value, world.memory, size(8)) == 0
    say("works", list(value))


FAULTS = [
    illegal_address, misaligned, trap, assertion, stack_overflow, out_of_memory, double_free,
    after_free,
]  # fmt: skip

if __name__ == "__main__":
    globals()[sys.argv[1]]()
