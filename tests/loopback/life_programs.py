# SPDX-License-Identifier: Apache-2.0
"""Programs that test_life.py runs: the driver's API by ctypes, one function each.

python life_programs.py NAME. A program prints `ready` and goes on when a line comes, or at once.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import threading
import time
from _ctypes import dlclose

PTX = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry add(.param .u64 p, .param .u32 n)
{
  .reg .u64 %a<4>;
  .reg .u32 %r<6>;
  ld.param.u64 %a1, [p];
  ld.param.u32 %r1, [n];
  mov.u32 %r2, %tid.x;
  mul.wide.u32 %a2, %r2, 4;
  add.u64 %a3, %a1, %a2;
  ld.global.u32 %r3, [%a3];
  add.u32 %r4, %r3, %r1;
  st.global.u32 [%a3], %r4;
  ret;
}
"""
N_VALUES = 256
BLOCKING_SYNC = 4
EVENT_BLOCKING_SYNC = 1
LEGACY, PER_THREAD = 1, 2  # CU_STREAM_*

cuda = ctypes.CDLL("libcuda.so.1")


def check(result: int) -> None:
    assert result == 0, f"CUDA error {result}"


def attach() -> ctypes.c_void_p:
    context = ctypes.c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))
    return context


class Adder:
    """N_VALUES numbers on the device, and a kernel that adds to each."""

    def __init__(self) -> None:
        module, self.kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self.values = ctypes.c_uint64()
        check(cuda.cuModuleLoadData(ctypes.byref(module), PTX))
        check(cuda.cuModuleGetFunction(ctypes.byref(self.kernel), module, b"add"))
        n_bytes = ctypes.c_size_t(4 * N_VALUES)
        check(cuda.cuMemAlloc_v2(ctypes.byref(self.values), n_bytes))
        check(cuda.cuMemsetD32_v2(self.values, 0, ctypes.c_size_t(N_VALUES)))
        check(cuda.cuCtxSynchronize())  # streams that do not wait for the default one come next

    def launch(self, amount: int, stream: ctypes.c_void_p | None = None) -> int:
        number = ctypes.c_uint32(amount)
        parameters = (ctypes.c_void_p * 2)(ctypes.addressof(self.values), ctypes.addressof(number))
        grid = (1, 1, 1, N_VALUES, 1, 1, 0)
        result: int = cuda.cuLaunchKernel(self.kernel, *grid, stream, parameters, None)
        return result

    def read(self) -> list[int]:
        values = (ctypes.c_uint32 * N_VALUES)()
        check(cuda.cuMemcpyDtoH_v2(values, self.values, ctypes.c_size_t(4 * N_VALUES)))
        return list(values)


def say(*words: object) -> None:
    """A line, in one write: where output is not buffered, print writes its end by itself, and
    processes that share the output mix their lines."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def until_error() -> None:
    """Compute until a call fails; then every call must say the same."""
    attach()
    adder = Adder()
    say("ready")
    result = 0
    while result == 0:
        result = adder.launch(1) or cuda.cuCtxSynchronize()
    begin_s = time.monotonic()
    value = ctypes.c_uint64()
    later = {
        adder.launch(1),
        cuda.cuCtxSynchronize(),
        cuda.cuMemAlloc_v2(ctypes.byref(value), ctypes.c_size_t(64)),
        cuda.cuMemsetD32_v2(adder.values, 0, ctypes.c_size_t(1)),
    }
    say("error", result, *sorted(later), time.monotonic() - begin_s < 1)


def idle() -> None:
    """Compute once, then make no call."""
    attach()
    Adder().read()
    say("ready")
    time.sleep(60)


def forked_child() -> None:
    attach()
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    say("ready", child)
    time.sleep(60)


def fork_child() -> None:
    """Fork while other threads are inside the driver; the child has no CUDA and no held lock."""
    context = attach()
    stop = threading.Event()

    def work() -> None:
        check(cuda.cuCtxSetCurrent(context))
        adder = Adder()
        while not stop.is_set():
            check(adder.launch(1))
            check(cuda.cuCtxSynchronize())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    adder = Adder()
    for _ in range(20):
        child = os.fork()
        if child == 0:
            value = ctypes.c_uint64()
            results = {
                cuda.cuInit(0),
                cuda.cuCtxSynchronize(),
                cuda.cuMemAlloc_v2(ctypes.byref(value), ctypes.c_size_t(64)),
                adder.launch(1),
            }
            blocks = [bytearray(100_000) for _ in range(100)]
            os._exit(0 if results == {3} and len(blocks) == 100 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child"
        check(adder.launch(2))
    stop.set()
    for thread in threads:
        thread.join()
    assert adder.read() == [40] * N_VALUES
    say("done")


def fork_during_init() -> None:
    """A child that is forked while another thread calls cuInit gets an answer, too."""
    starting = threading.Thread(target=attach)
    starting.start()
    children = []
    while starting.is_alive():
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            os._exit(cuda.cuInit(0))
        children.append(child)
        time.sleep(0.005)
    starting.join()
    results = {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children}
    attach()
    adder = Adder()
    check(adder.launch(2))
    assert adder.read() == [2] * N_VALUES
    say("done", *sorted(results))


def signals() -> None:
    """A handler that interrupts system calls runs all the time."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    attach()
    adder = Adder()
    for _ in range(100):
        check(adder.launch(1))
    assert adder.read() == [100] * N_VALUES
    signal.setitimer(signal.ITIMER_REAL, 0)
    say("done")


def threads_64() -> None:
    context = attach()
    wrong: list[int] = []

    def work(number: int) -> None:
        check(cuda.cuCtxSetCurrent(context))
        stream = ctypes.c_void_p()
        check(cuda.cuStreamCreate(ctypes.byref(stream), 1))
        adder = Adder()
        for _ in range(20):
            check(adder.launch(number, stream))
        check(cuda.cuStreamSynchronize(stream))
        if adder.read() != [20 * number] * N_VALUES:
            wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(1, 65)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong
    say("done")


def threads_mixed() -> None:
    """Streams of all kinds in 64 threads: those of one thread only, and those that all share."""
    context = attach()
    shared = [ctypes.c_void_p(), ctypes.c_void_p()]
    for flags, stream in enumerate(shared):
        check(cuda.cuStreamCreate(ctypes.byref(stream), flags))
    kinds = [None, ctypes.c_void_p(LEGACY), ctypes.c_void_p(PER_THREAD), *shared]
    wrong: list[int] = []

    def work(number: int) -> None:
        check(cuda.cuCtxSetCurrent(context))
        adder, event = Adder(), ctypes.c_void_p()
        check(cuda.cuEventCreate(ctypes.byref(event), 2))
        last = kinds[0]
        for n in range(20):
            stream = kinds[(number + n) % len(kinds)]
            check(cuda.cuEventRecord(event, last))
            check(cuda.cuStreamWaitEvent(stream, event, 0))
            check(adder.launch(number, stream))
            last = stream
        check(cuda.cuStreamSynchronize(last))
        if adder.read() != [20 * number] * N_VALUES:
            wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(1, 65)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong
    say("done")


def computes() -> None:
    attach()
    adder = Adder()
    check(adder.launch(5))
    assert adder.read() == [5] * N_VALUES
    say("computes")


def fork_exec() -> None:
    """Children that are another program: each has CUDA of its own, while the parent computes."""
    attach()
    adder = Adder()
    children = []
    for _ in range(4):
        check(adder.launch(1))
        child = os.fork()
        if child == 0:
            os.execv(sys.executable, [sys.executable, __file__, "computes"])
        children.append(child)
    while children:
        check(adder.launch(1))
        check(cuda.cuCtxSynchronize())
        ended, status = os.waitpid(children[0], os.WNOHANG)
        if ended:
            assert os.waitstatus_to_exitcode(status) == 0, "the child"
            children.pop(0)
    assert len(set(adder.read())) == 1
    say("done")


def exit_in_callback() -> None:
    """A host function ends the process while the main thread waits for its stream."""
    attach()
    adder, stream = Adder(), ctypes.c_void_p()
    check(cuda.cuStreamCreate(ctypes.byref(stream), 1))
    libc = ctypes.CDLL("libc.so.6")
    leave = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: libc.exit(7))
    check(adder.launch(1, stream))
    say("leaving")
    check(cuda.cuLaunchHostFunc(stream, leave, None))
    check(cuda.cuStreamSynchronize(stream))
    say("not reached")


def exit_with_work() -> None:
    attach()
    adder = Adder()
    for _ in range(500):
        check(adder.launch(1))
    say("leaving")


def close_library() -> None:
    attach()
    adder = Adder()
    check(adder.launch(3))
    dlclose(cuda._handle)
    again = ctypes.CDLL("libcuda.so.1")
    check(again.cuInit(0))
    check(again.cuCtxSynchronize())
    assert adder.read() == [3] * N_VALUES
    say("done")


def waiting() -> None:
    """Wait for a second's work of a stream: for the stream, and for an event behind it.

    Says which part of a processor each cost, in percent.
    """
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxSetFlags_v2(0, BLOCKING_SYNC))
    attach()
    sleep = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: time.sleep(1))
    stream, event = ctypes.c_void_p(), ctypes.c_void_p()
    check(cuda.cuStreamCreate(ctypes.byref(stream), 1))
    check(cuda.cuEventCreate(ctypes.byref(event), EVENT_BLOCKING_SYNC))
    check(cuda.cuStreamSynchronize(stream))
    percents = []
    for wait, what in ((cuda.cuStreamSynchronize, stream), (cuda.cuEventSynchronize, event)):
        check(cuda.cuLaunchHostFunc(stream, sleep, None))
        check(cuda.cuEventRecord(event, stream))
        before, begin_s = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
        check(wait(what))
        after, took_s = resource.getrusage(resource.RUSAGE_SELF), time.monotonic() - begin_s
        used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        percents.append(f"{100 * used_s / took_s:.1f}")
    say(*percents)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
