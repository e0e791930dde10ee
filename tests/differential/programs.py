# SPDX-License-Identifier: Apache-2.0
"""Random programs of driver API calls, valid and invalid ones, that give the same in every process.

A model of what exists keeps programs free of what is left open: data races (work that shares memory
on two streams is ordered by events), uninitialised memory, handles that no driver checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

SIZES = (1, 4, 64, 100, 4096, 65_536, 100_003, 2 << 20)
BAD_SIZES = (0, (1 << 48) + 3, (1 << 64) - 1)
LEGACY, PER_THREAD = 1, 2
DEFAULT = "default"  # a symbol that is never made stands for null
TURNS = (0, 1)  # the threads that take turns; those beyond them run at the same time
Argument = int | str | None | list[Any]
T = TypeVar("T")


@dataclass
class Memory:
    """Device memory, or host memory (`host`: pageable, pinned), and who may still work on it."""

    symbol: str
    size: int
    host: str = ""
    last: str = ""  # the stream
    ends: str = "cuMemFree_v2"  # how it is given back; "" for what is not


@dataclass
class Array(Memory):
    """An array: the bytes of an element; width in elements, height, depth."""

    element: int = 1
    shape: tuple[int, int, int] = (1, 0, 0)


@dataclass
class Capture:
    """A stream that captures: on which thread it began, what it uses, who has joined it."""

    thread: int
    uses: dict[str, str] = field(default_factory=dict)  # by which stream
    joined: list[str] = field(default_factory=list)


@dataclass
class Graph:
    """What its nodes use; one that was captured or cloned has nodes that nobody can name."""

    uses: set[str] = field(default_factory=set)
    nodes: dict[str, set[str]] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    is_named: bool = False


@dataclass
class Exec:
    uses: set[str]
    graph: str  # it was made of
    kinds: dict[str, str]
    nodes: dict[str, set[str]]


class Program:
    """The calls so far, and what they have made. `integer(low, high)` makes all choices."""

    def __init__(self, integer: Callable[[int, int], int]) -> None:
        self.integer = integer
        self.calls: list[list[Any]] = []
        self.thread: int | None = None  # of the calls; None: one of those that take turns
        self.memories: list[Memory] = []
        self.arrays: list[Array] = []
        self.streams: dict[str, bool] = {}  # whether it is blocking
        self.events: list[str] = []
        self.graphs: dict[str, Graph] = {}
        self.execs: dict[str, Exec] = {}
        self.functions: dict[str, str] = {}
        self.modules: list[str] = []
        self.libraries: list[str] = []
        self.captures: dict[str, Capture] = {}
        self.pools: list[str] = []
        self.ranges: dict[str, str] = {}  # addresses and what is mapped there

    # -- choices ----------------------------------------------------------------------------------

    def choose(self, things: Iterable[T]) -> T:
        among = list(things)
        return among[self.integer(0, len(among) - 1)]

    def rarely(self) -> bool:
        return self.integer(0, 19) == 19

    def perhaps(self) -> bool:
        return self.integer(0, 1) == 1

    # -- calls ------------------------------------------------------------------------------------

    def call(self, name: str, *arguments: Argument, thread: int | None = None) -> int:
        """Add a call; returns its number, with which its `out:` symbol is named."""
        if thread is None:
            thread = self.choose(TURNS) if self.thread is None else self.thread
        self.calls.append([name, thread, list(arguments)])
        return len(self.calls) - 1

    # -- order ------------------------------------------------------------------------------------

    def settle(self, *memories: Memory) -> bool:
        """Before the host, or a call without a stream, touches it; false where that cannot be."""
        streams = {memory.last for memory in memories if memory.last}
        if streams and self.captures:
            return False
        for stream in sorted(streams):
            self.synchronize(stream)
        return True

    def settle_default(self, *memories: Memory) -> None:
        """After a call without a stream; where a capture forbids the wait, it may still work."""
        self.call("cuStreamSynchronize", None)
        if self.captures:
            for memory in memories:
                memory.last = DEFAULT

    def synchronize(self, stream: str) -> None:
        self.call("cuStreamSynchronize", handle(stream))
        if self.captures:
            return  # which may forbid it
        for memory in [*self.memories, *self.arrays]:
            if memory.last == stream:
                memory.last = ""

    def order(self, stream: str, *memories: Memory) -> bool:
        """Let work on `stream` use it next; false where a capture keeps it from that."""
        if stream in self.captures:
            uses = self.captures[stream].uses
            if any(m.last not in ("", stream) for m in memories):
                return False
            if any(uses.get(m.symbol, stream) != stream for m in memories):
                return False
            uses.update({m.symbol: stream for m in memories})
            return True
        if any(self.is_captured(m) for m in memories):
            return False
        for memory in memories:
            if memory.last not in ("", stream):
                event = handle(f"event{self.call('cuEventCreate', 2)}")
                self.call("cuEventRecord", event, handle(memory.last))
                self.call("cuStreamWaitEvent", handle(stream), event, 0)
            memory.last = stream
        return True

    # -- what there is ----------------------------------------------------------------------------

    def stream(self) -> str:
        return self.choose(self.streams) if self.streams else ""

    def memory(
        self, *, host: bool | None = None, settled: bool = False, least: int = 0
    ) -> Memory | None:
        found = [
            m
            for m in self.memories
            if (host is None or bool(m.host) == host)
            and not (settled and self.is_captured(m))
            and m.size >= least
        ]
        return self.choose(found) if found else None

    def is_captured(self, memory: Memory) -> bool:
        """Whether a capture keeps it, or work from before one that nobody can wait for now."""
        if memory.last in self.captures:
            return True
        return any(memory.symbol in capture.uses for capture in self.captures.values())

    def is_kept(self, memory: Memory) -> bool:
        """Whether something may use it that is launched later."""
        kept = [g.uses for g in self.graphs.values()] + [e.uses for e in self.execs.values()]
        return any(memory.symbol in uses for uses in kept)

    def span(self, *memories: Memory) -> tuple[list[int], int]:
        """Offsets and a length; rarely beyond the end of one of them.

        Never of host memory, and not in a capture: natively only the graph's launch finds out.
        """
        size = min(m.size for m in memories)
        length = self.integer(1, size)
        offsets = [self.integer(0, m.size - length) for m in memories]
        if not self.captures and all(not m.host for m in memories) and self.rarely():
            length += max(m.size for m in memories) * 2 + (8 << 20)
        return offsets, length

    # -- threads ----------------------------------------------------------------------------------

    @contextmanager
    def at_once(self, threads: Iterable[int]) -> Iterator[Iterator[int]]:
        """For each of the threads what it does while the others do theirs, with things of its own.

        Kernels are everybody's. Streams, memory and events stay with the program afterwards.
        """
        number = self.call("together", 0)
        mine = self.memories, self.streams, self.events, self.ranges
        made: tuple[list[Memory], dict[str, bool], list[str], dict[str, str]] = [], {}, [], {}

        def each() -> Iterator[int]:
            for thread in threads:
                self.thread = thread
                self.memories, self.streams, self.events, self.ranges = [], {}, [], {}
                yield thread
                for stream in list(self.streams):
                    self.synchronize(stream)
                made[0].extend(self.memories)
                made[1].update(self.streams)
                made[2].extend(self.events)
                made[3].update(self.ranges)

        yield each()
        self.thread = None
        self.calls[number][2] = [len(self.calls) - number - 1]
        self.memories, self.streams = [*mine[0], *made[0]], mine[1] | made[1]
        self.events, self.ranges = [*mine[2], *made[2]], mine[3] | made[3]

    # -- the end ----------------------------------------------------------------------------------

    def finished(self) -> list[list[Any]]:
        """What ends a program well: captures closed, all work done."""
        for stream, capture in list(self.captures.items()):
            if stream not in capture.joined:
                self.call("cuStreamEndCapture", handle(stream), thread=capture.thread)
        self.call("cuCtxSynchronize")
        return self.calls


def handle(symbol: str) -> list[Any] | None:
    return [symbol, 0] if symbol else None


def at(memory: Memory, offset: int = 0) -> list[Any]:
    return [memory.symbol, offset]
