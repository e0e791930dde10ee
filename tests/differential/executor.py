# SPDX-License-Identifier: Apache-2.0
"""Carries out programs of driver API calls, one JSON line each, and answers what every call gave.

Runs in a process of its own, natively or under `kvgpu run`; needs nothing but Python.
A program is a list of calls `[function, thread, arguments, nulls]`. An argument is a number, a
string, null or `[symbol, offset]`: what an earlier `out:` parameter or `buffer` stored; a list of
them where a structure or an array is wanted. Calls are made one after the other, the `n` that
follow `together n` by all their threads at once.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import mmap
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from differential.signatures_structured import SIGNATURES
from differential.structures import STRUCTURES

NUMBERS: dict[str, Any] = {
    "i32": ctypes.c_int32,
    "u32": ctypes.c_uint32,
    "u64": ctypes.c_uint64,
    "f32": ctypes.c_float,
}
ABSENT = "absent"  # the software GPU has not all of the API
PATTERN = 0x5A  # in new page-locked memory
PAGEABLE = bytes(n * 7 % 251 for n in range(251))  # the same, again and again
N_THREADS = 6
# In this order: what uses others goes first.
ENDS = {
    "exec": "cuGraphExecDestroy",
    "graph": "cuGraphDestroy",
    "event": "cuEventDestroy_v2",
    "stream": "cuStreamDestroy_v2",
    "module": "cuModuleUnload",
    "dptr": "cuMemFree_v2",
    "va": "cuMemAddressFree",
    "phys": "cuMemRelease",
    "pool": "cuMemPoolDestroy",
    "host": "cuMemFreeHost",
}
FREES = (*ENDS.values(), "cuMemFreeAsync", "cuGraphDestroyNode")


def mix(address: int) -> None:
    """What host functions do: order shows."""
    cell = ctypes.c_uint8.from_address(address)
    cell.value = (cell.value * 31 + 1) & 255


HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(mix)
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(
    lambda _stream, _status, address: mix(address)
)
FUNCTIONS = {"fn": HOST_FUNCTION, "callback": CALLBACK}


class Turns:
    """A thread that does what it is handed."""

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

    def begin(self, work: Callable[[], Any]) -> None:
        self._work.put(work)

    def end(self) -> Any:
        return self._done.get()

    def do(self, work: Callable[[], Any]) -> Any:
        self.begin(work)
        return self.end()


class Machine:
    """The driver, and what one program has made of it."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.image = ctypes.create_string_buffer(Path(os.environ["KERNELS_PTX"]).read_bytes())
        self.threads = [Turns() for _ in range(N_THREADS)]
        self.context = ctypes.c_uint64()
        self.must("cuInit", 0)
        self.must("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.reset()

    def must(self, name: str, *arguments: Any) -> None:
        if status := getattr(self.cuda, name)(*arguments):
            raise SystemExit(f"executor: {name}: {status}")

    def reset(self) -> None:
        self.values: dict[str, int] = {"context": self.context.value}
        self.ended: dict[str, int] = {}  # what they were; the driver may use the numbers again
        self.kinds: dict[str, str] = {}
        self.sizes: dict[str, int] = {}
        self.filled: set[str] = set()  # what has contents, so that they can be compared
        self.ranges: dict[str, int] = {}  # of addresses: how long
        self.buffers: dict[str, Any] = {}
        self.registered: dict[str, int] = {}

    # -- arguments --------------------------------------------------------------------------------

    def address(self, argument: Any) -> int:
        """The number that stands for an argument; a symbol that was never made is null."""
        if argument is None:
            return 0
        if isinstance(argument, int):
            return argument
        symbol, offset = argument
        value = self.values.get(symbol) or self.ended.get(symbol, 0)
        return value + offset if value else 0

    def parameters(self, values: list[Any], keep: list[Any]) -> Any:
        """Kernel parameters: 64-bit pointers and 32-bit numbers."""
        cells = [
            ctypes.c_int32(value)
            if isinstance(value, int)
            else ctypes.c_uint64(self.address(value))
            for value in values
        ]
        array = (ctypes.c_void_p * max(1, len(cells)))(*(ctypes.addressof(c) for c in cells))
        keep.extend([cells, array])
        return array

    def structure(self, name: str, values: list[Any], keep: list[Any]) -> bytes:
        """The bytes of a structure."""
        given = iter(values)
        members: list[tuple[str, Any]] = []
        contents: list[Any] = []
        for number, word in enumerate(STRUCTURES[name]):
            if word.isdigit():
                members.append((f"m{number}", ctypes.c_char * int(word)))
                contents.append(b"")
                continue
            members.append((f"m{number}", NUMBERS.get(word, ctypes.c_uint64)))
            if word == "fn":
                contents.append(ctypes.cast(HOST_FUNCTION, ctypes.c_void_p).value)
            elif word == "params":
                contents.append(ctypes.addressof(self.parameters(next(given), keep)))
            else:
                value = next(given)
                contents.append(value if word in NUMBERS else self.address(value))
        made = type(name, (ctypes.Structure,), {"_fields_": members})
        return bytes(made(*contents))

    def argument(self, word: str, given: Any, keep: list[Any]) -> Any:
        kind, _, what = word.partition("=")[0].partition(":")
        if kind == "null":
            return None
        if kind == "image":
            return self.image
        if kind in FUNCTIONS:
            return FUNCTIONS[kind]
        value = next(given)
        match kind:
            case "text":
                return value.encode()
            case "params":
                return self.parameters(value, keep)
            case "nodes":
                return (ctypes.c_uint64 * max(1, len(value)))(*map(self.address, value))
            case "cell":
                return ctypes.byref(NUMBERS[what](value))
            case "struct":
                return None if value is None else self.structure(what, value, keep)
            case "structs":
                return b"".join(self.structure(what, one, keep) for one in value)
        return NUMBERS[kind](value) if kind in NUMBERS else ctypes.c_uint64(self.address(value))

    # -- calls ------------------------------------------------------------------------------------

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
            elif kind == "result":
                results.append((kind, what, (ctypes.c_int32 * 8)()))
                passed.append(results[-1][2])
            elif kind in ("out", "get", "drop", "where", "inout"):
                cell = NUMBERS.get(what, ctypes.c_uint64)(next(given) if kind == "inout" else 0)
                passed.append(ctypes.byref(cell))
                results.append((kind, what, cell))
            else:
                passed.append(self.argument(word, given, keep))
        if not hasattr(self.cuda, name):
            return [ABSENT]
        status = getattr(self.cuda, name)(*passed)
        said = self.outcome(number, status, results, arguments)
        if status == 0:
            self.follow(name, arguments)
        return [status, *said]

    def outcome(self, number: int, status: int, results: Any, arguments: list[Any]) -> list[Any]:
        said = []
        for kind, what, cell in results:
            if kind == "result":
                said.append(cell[0])
            elif status != 0 and kind != "inout":
                continue
            elif kind == "out":
                self.keep(f"{what}{number}", what, cell.value, arguments)
            elif kind in ("get", "inout"):
                said.append(cell.value)
            elif kind == "where":
                said.append(self.place(cell.value))
        return said

    def keep(self, symbol: str, kind: str, value: int, arguments: list[Any]) -> None:
        self.values[symbol], self.kinds[symbol] = value, kind
        size = next((a for a in arguments if isinstance(a, int)), 0)
        if kind in ("dptr", "host"):
            self.sizes[symbol] = size
        if kind == "host":
            ctypes.memset(value, PATTERN, size)
            self.filled.add(symbol)
        if kind == "va":
            self.ranges[symbol] = size

    def follow(self, name: str, arguments: list[Any]) -> None:
        """What a call that has succeeded makes of its first argument."""
        symbol = arguments[0][0] if arguments and isinstance(arguments[0], list) else ""
        if name in FREES and symbol in self.kinds:
            self.ended[symbol] = self.values.pop(symbol)
            del self.kinds[symbol]
            self.sizes.pop(symbol, None)
            self.filled.discard(symbol)
        elif name in ("cuMemsetD8_v2", "cuMemsetD8Async"):
            self.filled.add(symbol)
        elif name == "cuMemSetAccess":
            self.sizes[symbol] = self.ranges[symbol]
        elif name == "cuMemUnmap":
            self.filled.discard(symbol)
        elif name == "cuMemHostRegister_v2":
            self.registered[symbol] = self.values[symbol]
        elif name == "cuMemHostUnregister":
            self.registered.pop(symbol, None)

    def place(self, address: int) -> Any:
        """A pointer as another process can have it: symbol and offset."""
        if address == self.context.value:
            return "context"
        for symbol, value in list(self.values.items()):
            if value and value <= address < value + max(1, self.sizes.get(symbol, 0)):
                return [symbol, address - value]
        return "null" if address == 0 else "elsewhere"

    def buffer(self, symbol: str, size: int) -> list[Any]:
        """Pageable host memory with a pattern in it."""
        memory = mmap.mmap(-1, size)  # on pages of its own, as memory to register should be
        memory[:] = (PAGEABLE * (size // 251 + 1))[:size]
        self.buffers[symbol] = memory
        self.values[symbol] = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.sizes[symbol] = size
        self.filled.add(symbol)
        return [0]

    # -- programs ---------------------------------------------------------------------------------

    def run(self, program: list[Any]) -> list[Any]:
        self.reset()
        for thread in self.threads:
            thread.do(self.begin)
        answers: list[Any] = [None] * len(program)
        number = 0
        while number < len(program):
            name, _, arguments, *_ = program[number]
            if name == "together":
                answers[number] = [0]
                numbers = range(number + 1, number + 1 + arguments[0])
                threads = {program[n][1]: self.threads[program[n][1]] for n in numbers}
                for thread, turns in threads.items():
                    mine = [n for n in numbers if program[n][1] == thread]
                    turns.begin(lambda mine=mine: self.several(program, mine, answers))
                for turns in threads.values():
                    turns.end()
                number = numbers.stop
            else:
                work = self.threads[program[number][1]]
                work.do(lambda n=number: self.several(program, [n], answers))
                number += 1
        answers.append(self.threads[0].do(self.finish))
        return answers

    def several(self, program: list[Any], numbers: list[int], answers: list[Any]) -> None:
        for number in numbers:
            name, _, arguments, *nulls = program[number]
            if name == "buffer":
                answers[number] = self.buffer(*arguments)
            else:
                answers[number] = self.call(number, name, arguments, *nulls)

    def begin(self) -> None:
        self.must("cuCtxSetCurrent", self.context)
        self.must("cuThreadExchangeStreamCaptureMode", ctypes.byref(ctypes.c_int()))

    def finish(self) -> list[Any]:
        """The bytes of all memory, then an end to everything; whether the context still lives."""
        self.cuda.cuCtxSetCurrent(self.context)
        for symbol, kind in self.kinds.items():
            if kind == "stream":
                self.cuda.cuStreamEndCapture(
                    ctypes.c_uint64(self.values[symbol]), ctypes.byref(ctypes.c_uint64())
                )
        status = self.cuda.cuCtxSynchronize()
        contents = {symbol: self.digest(symbol) for symbol in sorted(self.filled)}
        for address in self.registered.values():
            self.cuda.cuMemHostUnregister(ctypes.c_uint64(address))
        for kind, end in ENDS.items():
            for symbol, found in self.kinds.items():
                if found != kind:
                    continue
                value = ctypes.c_uint64(self.values[symbol])
                if kind == "va":
                    self.cuda.cuMemUnmap(value, ctypes.c_uint64(self.ranges[symbol]))
                    self.cuda.cuMemAddressFree(value, ctypes.c_uint64(self.ranges[symbol]))
                else:
                    getattr(self.cuda, end)(value)
        return [status, contents, self.cuda.cuCtxSynchronize()]

    def digest(self, symbol: str) -> str:
        size = self.sizes[symbol]
        if symbol in self.buffers:
            data = bytes(self.buffers[symbol])
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
    for line in sys.stdin:
        print(json.dumps(machine.run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
