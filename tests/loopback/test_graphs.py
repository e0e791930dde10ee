# SPDX-License-Identifier: Apache-2.0
"""What of graphs cannot be seen in a case that also runs natively."""

from __future__ import annotations

import sys

from framework.loopback import Loopback

# A host function of a graph lives as long as the graph, its clones and its execs, and not longer:
# the library's memory is what tells.
FORGOTTEN = """
import ctypes

cuda = ctypes.CDLL("libcuda.so.1")
libc = ctypes.CDLL("libc.so.6")


class Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks"
                " fsmblks uordblks fordblks keepcost".split()]


libc.mallinfo2.restype = Mallinfo2
calls = 0


def note(_user):
    global calls
    calls += 1


NOTE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(note)


def ok(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, (name, code)


def made(name, *arguments):
    out = ctypes.c_void_p()
    ok(name, ctypes.byref(out), *arguments)
    return out


def once():
    graph = ctypes.c_void_p()
    ok("cuStreamBeginCapture_v2", stream, 0)
    ok("cuLaunchHostFunc", stream, NOTE, None)
    ok("cuStreamEndCapture", stream, ctypes.byref(graph))
    clone = made("cuGraphClone", graph)
    executable = made("cuGraphInstantiateWithFlags", clone, ctypes.c_uint64(0))
    ok("cuGraphDestroy", graph)
    ok("cuGraphDestroy", clone)
    ok("cuGraphLaunch", executable, stream)
    ok("cuGraphExecDestroy", executable)


def used_bytes(n):
    for _ in range(n):
        once()
    ok("cuStreamSynchronize", stream)
    return libc.mallinfo2().uordblks


ok("cuInit", 0)
context = made("cuDevicePrimaryCtxRetain", 0)
ok("cuCtxSetCurrent", context)
stream = made("cuStreamCreate", 1)
N = 600
before = used_bytes(N)
growth = used_bytes(N) - before
assert calls == 2 * N, calls
assert growth < 24 * N, f"{growth / N} bytes of each graph stay"
"""


def test_host_functions_go_with_the_last_graph_that_runs_them(host: Loopback) -> None:
    host.check(sys.executable, "-c", FORGOTTEN)
