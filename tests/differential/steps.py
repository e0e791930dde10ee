# SPDX-License-Identifier: Apache-2.0
"""What a random program may do next, of all families of the API, and programs made of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from differential import steps_arrays as arrays
from differential import steps_graphs as graphs
from differential import steps_memory as memory
from differential import steps_work as work
from differential.programs import Program

Step = Callable[[Program], None]
MIN_CALLS = 64

STARTS: list[Step] = [
    work.make_stream, work.make_stream, work.use_module, memory.allocate, memory.allocate,
    memory.host_memory,
]  # fmt: skip
STEPS: list[Step] = [
    memory.allocate, memory.allocate, memory.allocate_async, memory.host_memory, memory.register,
    memory.free, memory.copy, memory.copy, memory.copy_peer, memory.copy_block, memory.copy_block,
    memory.memset, memory.memset, memory.ask_memory, memory.use_pool, memory.virtual_memory,
    memory.unmap, arrays.make_array, arrays.copy_array, arrays.copy_array, arrays.copy_array,
    arrays.copy_line, arrays.use_array, work.use_library, work.make_stream, work.use_stream,
    work.use_event, work.use_module, work.ask_function, work.launch, work.launch, work.launch,
    work.host_function,
    work.memory_operations, work.ask_context, work.threads, graphs.begin_capture,
    graphs.join_capture, graphs.end_capture, graphs.end_capture, graphs.use_graph,
    graphs.use_graph, graphs.add_node, graphs.add_node, graphs.add_node, graphs.use_node,
    graphs.use_exec, graphs.launch_graph, graphs.launch_graph, graphs.launch_graph,
]  # fmt: skip


def program(integer: Callable[[int, int], int]) -> list[list[Any]]:
    """A program of MIN_CALLS or more, by whoever chooses numbers from low to high."""
    made = Program(integer)
    for start in STARTS:
        start(made)
    while len(made.calls) < MIN_CALLS:
        made.choose(STEPS)(made)
    return made.finished()


def numbered(number: int) -> list[list[Any]]:
    """The program of this number, the same on every machine."""
    return program(random.Random(number).randint)
