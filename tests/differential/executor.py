# SPDX-License-Identifier: Apache-2.0
"""Carries out programs of driver API calls, one JSON line each, and answers what every call gave.

Runs in a process of its own, natively or under `kvgpu run`; sees nothing of hypothesis or pytest.
A program is a list of calls `[function, thread, arguments, nulls]`. An argument is a number, a
string, null or `[symbol, offset]`: what an earlier `out:` parameter or `buffer` stored.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from differential.signatures import SIGNATURES

NUMBERS: dict[str, Any] = {
    "i32": ctypes.c_int32,
    "u32": ctypes.c_uint32,
    "u64": ctypes.c_uint64,
    "f32": ctypes.c_float,
}
ABSENT = "absent"  # the software GPU has not all of the API
PATTERN = 0x5A  # in new page-locked memory
# In this order: what uses others goes first.
ENDS = {
    "exec": "cuGraphExecDestroy",
    "graph": "cuGraphDestroy",
    "event": "cuEventDestroy_v2",
    "stream": "cuStreamDestroy_v2",
    "module": "cuModuleUnload",
    "dptr": "cuMemFree_v2",
    "host": "cuMemFreeHost",
}
FREES = (*ENDS.values(), "cuMemFreeAsync")


class Turns:
    """A thread that does what it is handed, while its caller waits."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                self._done.put(self._work.get()())
            except BaseException:
                traceback.print_exc()
                os._exit(1)  # whoever waits for the answer must not wait for ever

    def do(self, work: Callable[[], Any]) -> Any:
        self._work.put(work)
        return self._done.get()


class Machine:
    """The driver, and what one program has made of it."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.image = ctypes.create_string_buffer(Path(os.environ["KERNELS_PTX"]).read_bytes())
        self.threads = [Turns() for _ in range(2)]
        self.context = ctypes.c_uint64()
        self.must("cuInit", 0)
        self.must("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.reset()

    def must(self, name: str, *arguments: Any) -> None:
        if status := getattr(self.cuda, name)(*arguments):
            raise SystemExit(f"executor: {name}: {status}")

    def reset(self) -> None:
        self.values: dict[str, int] = {}
        self.ended: dict[str, int] = {}  # what they were; the driver may use the numbers again
        self.kinds: dict[str, str] = {}
        self.sizes: dict[str, int] = {}
        self.buffers: dict[str, Any] = {}

    def address(self, argument: Any) -> int:
        """The number that stands for an argument; a symbol that was never made is null."""
        if argument is None:
            return 0
        if isinstance(argument, int):
            return argument
        symbol, offset = argument
        value = self.values.get(symbol) or self.ended.get(symbol, 0)
        return value + offset if value else 0

    def place(self, address: int) -> Any:
        """A pointer as another process can have it: symbol and offset."""
        if address == self.context.value:
            return "context"
        for symbol, value in self.values.items():
            if value and value <= address < value + max(1, self.sizes.get(symbol, 0)):
                return [symbol, address - value]
        return "null" if address == 0 else "elsewhere"

    def call(
        self, number: int, name: str, arguments: list[Any], nulls: Sequence[int] = ()
    ) -> list[Any]:
        """One call: its status, and the results that are the same in every process.

        `nulls`: the parameters (of those that are no argument) for which it gets a null pointer.
        """
        given = iter(arguments)
        passed: list[Any] = []
        results: list[tuple[str, str, Any]] = []
        keep: list[Any] = []
        for word in SIGNATURES[name]:
            kind, _, what = word.partition("=")[0].partition(":")
            if len(passed) in nulls:
                passed.append(None)
            elif kind in ("out", "get", "drop", "where", "inout"):
                cell = NUMBERS.get(what, ctypes.c_uint64)(next(given) if kind == "inout" else 0)
                passed.append(ctypes.byref(cell))
                results.append((kind, what, cell))
            elif kind == "null":
                passed.append(None)
            elif kind == "image":
                passed.append(self.image)
            elif kind == "text":
                passed.append(next(given).encode())
            elif kind in ("params", "nodes"):
                passed.append(self.pack(next(given), keep))
            elif kind in NUMBERS:
                passed.append(NUMBERS[kind](next(given)))
            else:
                passed.append(ctypes.c_uint64(self.address(next(given))))
        if not hasattr(self.cuda, name):
            return [ABSENT]
        status = getattr(self.cuda, name)(*passed)
        if status == 0 and name in FREES:
            self.forget(arguments[0])
        return [status, *self.outcome(number, status, results, arguments)]

    def forget(self, argument: Any) -> None:
        if isinstance(argument, list) and argument[0] in self.kinds:
            symbol = argument[0]
            self.ended[symbol] = self.values.pop(symbol)
            del self.kinds[symbol]
            self.sizes.pop(symbol, None)

    def pack(self, values: list[Any], keep: list[Any]) -> Any:
        """Kernel parameters: 64-bit pointers and 32-bit numbers."""
        cells = [
            ctypes.c_int32(value)
            if isinstance(value, int)
            else ctypes.c_uint64(self.address(value))
            for value in values
        ]
        keep.extend(cells)
        array = (ctypes.c_void_p * max(1, len(cells)))(*(ctypes.addressof(c) for c in cells))
        keep.append(array)
        return array

    def outcome(self, number: int, status: int, results: Any, arguments: list[Any]) -> list[Any]:
        said = []
        for kind, what, cell in results:
            if status != 0 and kind != "inout":
                continue
            if kind == "out":
                symbol = f"{what}{number}"
                self.values[symbol], self.kinds[symbol] = cell.value, what
                sizes = [a for a in arguments if isinstance(a, int)]
                if what in ("dptr", "host") and sizes:
                    self.sizes[symbol] = sizes[0]
                if what == "host":
                    ctypes.memset(cell.value, PATTERN, sizes[0])
            elif kind in ("get", "inout"):
                said.append(cell.value)
            elif kind == "where":
                said.append(self.place(cell.value))
        return said

    def buffer(self, symbol: str, size: int) -> list[Any]:
        """Pageable host memory with a pattern in it."""
        memory = ctypes.create_string_buffer(bytes(n * 7 % 251 for n in range(size)), size)
        self.buffers[symbol] = memory
        self.values[symbol], self.sizes[symbol] = ctypes.addressof(memory), size
        return [0]

    def run(self, program: list[Any]) -> list[Any]:
        self.reset()
        for thread in self.threads:
            thread.do(lambda: self.must("cuCtxSetCurrent", self.context))
        answers = []
        for number, (name, thread, arguments, *nulls) in enumerate(program):
            if name == "buffer":
                answers.append(self.buffer(*arguments))
                continue

            def work(n: int = number, name: str = name, rest: Any = (arguments, *nulls)) -> Any:
                return self.call(n, name, *rest)

            answers.append(self.threads[thread].do(work))
        answers.append(self.threads[0].do(self.finish))
        return answers

    def finish(self) -> list[Any]:
        """The bytes of all memory, then an end to everything; whether the context still lives."""
        self.cuda.cuCtxSetCurrent(self.context)
        for symbol, kind in self.kinds.items():
            if kind == "stream":
                self.cuda.cuStreamEndCapture(
                    ctypes.c_uint64(self.values[symbol]), ctypes.byref(ctypes.c_uint64())
                )
        status = self.cuda.cuCtxSynchronize()
        contents = {symbol: self.digest(symbol) for symbol in self.sizes}
        for kind, end in ENDS.items():
            for symbol, found in self.kinds.items():
                if found == kind:
                    getattr(self.cuda, end)(ctypes.c_uint64(self.values[symbol]))
        return [status, contents, self.cuda.cuCtxSynchronize()]

    def digest(self, symbol: str) -> str:
        size = self.sizes[symbol]
        if symbol in self.buffers:
            data = self.buffers[symbol].raw
        else:
            copy = ctypes.create_string_buffer(size)
            source = ctypes.c_uint64(self.values[symbol])
            if status := self.cuda.cuMemcpy(
                ctypes.c_uint64(ctypes.addressof(copy)), source, ctypes.c_uint64(size)
            ):
                return f"CUresult {status}"
            data = copy.raw
        return hashlib.sha256(data).hexdigest()[:16]


def main() -> None:
    machine = Machine()
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(machine.run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
