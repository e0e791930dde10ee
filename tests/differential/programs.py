# SPDX-License-Identifier: Apache-2.0
"""Random programs of driver API calls, valid and invalid ones, that give the same in every process.

A model of what exists keeps programs free of what is left open: data races (work that shares memory
on two streams is ordered by events), uninitialised memory, handles that no driver checks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

SIZES = st.sampled_from([1, 4, 64, 100, 4096, 65_536, 100_003, 2 << 20])
BAD_SIZES = st.sampled_from([0, (1 << 48) + 3, (1 << 64) - 1])
LEGACY, PER_THREAD = 1, 2
RARELY = st.integers(0, 19).map(lambda n: n == 0)
Argument = int | str | None | list[Any]


@dataclass
class Memory:
    """Device memory, or host memory (`host`: pageable, pinned), and who may still work on it."""

    symbol: str
    size: int
    host: str = ""
    last: str = ""  # the stream
    is_async: bool = False


@dataclass
class Capture:
    """A stream that captures: on which thread it began, what it uses."""

    thread: int
    uses: set[str] = field(default_factory=set)


class Program:
    """The calls so far, and what they have made."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self.draw = draw
        self.calls: list[list[Any]] = []
        self.memories: list[Memory] = []
        self.streams: dict[str, bool] = {}  # whether it is blocking
        self.events: list[str] = []
        self.graphs: dict[str, set[str]] = {}
        self.execs: dict[str, set[str]] = {}
        self.functions: dict[str, str] = {}
        self.modules: list[str] = []
        self.captures: dict[str, Capture] = {}

    # -- calls ------------------------------------------------------------------------------------

    def call(self, name: str, *arguments: Argument, thread: int | None = None) -> int:
        """Add a call; returns its number, with which its `out:` symbol is named."""
        if thread is None:
            thread = self.draw(st.integers(0, 1))
        self.calls.append([name, thread, list(arguments)])
        return len(self.calls) - 1

    def choose(self, things: Any) -> Any:
        return self.draw(st.sampled_from(list(things)))

    # -- order ------------------------------------------------------------------------------------

    def settle(self, memory: Memory) -> None:
        """Before the host, or a call without a stream, touches it."""
        if memory.last:
            self.synchronize(memory.last)

    def synchronize(self, stream: str) -> None:
        self.call("cuStreamSynchronize", handle(stream))
        for memory in self.memories:
            if memory.last == stream:
                memory.last = ""

    def order(self, memory: Memory, stream: str) -> bool:
        """Let work on `stream` use it next; false where a capture keeps it from that."""
        if stream in self.captures:
            if memory.last not in ("", stream):
                return False
            self.captures[stream].uses.add(memory.symbol)
            return True
        if self.is_captured(memory):
            return False
        if memory.last not in ("", stream):
            number = self.call("cuEventCreate", 2)
            event = handle(f"event{number}")
            self.call("cuEventRecord", event, handle(memory.last))
            self.call("cuStreamWaitEvent", handle(stream), event, 0)
        memory.last = stream
        return True

    # -- choices ----------------------------------------------------------------------------------

    def stream(self) -> str:
        return str(self.choose(self.streams)) if self.streams else ""

    def memory(self, *, host: bool | None = None, settled: bool = False) -> Memory | None:
        found = [
            m
            for m in self.memories
            if (host is None or bool(m.host) == host) and not (settled and self.is_captured(m))
        ]
        return self.choose(found) if found else None

    def is_captured(self, memory: Memory) -> bool:
        """Whether a capture keeps it, or work from before one that nobody can wait for now."""
        uses = (capture.uses for capture in self.captures.values())
        return memory.last in self.captures or any(memory.symbol in symbols for symbols in uses)

    def span(self, *memories: Memory) -> tuple[list[int], int]:
        """Offsets and a length; rarely beyond the end of one of them (never of host memory)."""
        size = min(m.size for m in memories)
        length = self.draw(st.integers(1, size))
        offsets = [self.draw(st.integers(0, m.size - length)) for m in memories]
        if all(not m.host for m in memories) and self.draw(RARELY):
            length += max(m.size for m in memories) * 2 + (8 << 20)
        return offsets, length


def handle(symbol: str) -> list[Any] | None:
    return [symbol, 0] if symbol else None


def at(memory: Memory, offset: int = 0) -> list[Any]:
    return [memory.symbol, offset]


def finished(program: Program) -> list[list[Any]]:
    """What ends a program well: captures closed, all work done."""
    for stream in list(program.captures):
        thread = program.captures[stream].thread
        program.call("cuStreamEndCapture", handle(stream), thread=thread)
    program.call("cuCtxSynchronize")
    return program.calls
