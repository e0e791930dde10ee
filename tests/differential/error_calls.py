# SPDX-License-Identifier: Apache-2.0
"""Makes calls with bad arguments: a process of its own, that a driver may crash.

Standard input: JSON, a list of [function, what]; standard output: before a call its number, after
it its number and what it gave, as in `0`, `900 end 901` (the capture that was in progress),
`0 then 719` (what the context says afterwards). Ends after the first call that leaves the process
unsound. Calls before cuInit are made by children, each of which loads the driver anew.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from differential.arguments import BEFORE, good
from differential.bad_arguments import bad
from differential.prototypes import parameters
from differential.rows import AFTER_FAULT, BEFORE_INIT, CAPTURING, OTHER_CAPTURES, Row
from differential.scene import Scene
from differential.scene_base import SceneError, buffer
from differential.soundness import Canary


def arguments(scene: Scene, function: str, what: str) -> list[Any]:
    """Good ones, but for the parameter that `what` (parameter=value) names."""
    at_fault, _, how = what.partition("=")
    made = []
    for name, kind in parameters(function):
        variants = bad(function, name, kind) if name == at_fault and how else {}
        made.append((variants.get(how) or good(function, name, kind))(scene))
    return made


class Call:
    """One call, ready to be made."""

    def __init__(self, cuda: ctypes.CDLL, function: str, what: str) -> None:
        self.cuda, self.function, self.what = cuda, function, what
        self.entry = getattr(cuda, function)
        if what == BEFORE_INIT:
            self.arguments = [zero(kind) for _, kind in parameters(function)]
            return
        self.scene = scene = Scene(cuda, function)
        before = BEFORE.get(function)
        if before and (what != AFTER_FAULT or before != Scene.begin_capture):
            before(scene)
        self.arguments = arguments(scene, function, what)
        if what in (CAPTURING, OTHER_CAPTURES):
            scene.stream, scene.other_stream  # noqa: B018  (made before the capture begins)
        if what == CAPTURING and before != Scene.begin_capture:
            scene.begin_capture()
        elif what == OTHER_CAPTURES:
            scene.begin_other_capture()
        elif what == "no context":
            scene.forget_contexts()
        elif what == "other context":
            scene.enter_other_context()
        elif what == "again":
            self.entry(*self.arguments)

    def make(self) -> str:
        """Make it; what it gave."""
        if self.what == AFTER_FAULT:
            self.cuda.cuCtxSetCurrent(self.scene.primary)
        said = str(self.entry(*self.arguments))
        if self.what in (BEFORE_INIT, AFTER_FAULT):
            return said
        if self.what in (CAPTURING, OTHER_CAPTURES):
            name = "stream" if self.what == CAPTURING else "other_stream"
            out = ctypes.c_uint64()
            stream = getattr(self.scene, name)
            said += f" end {self.cuda.cuStreamEndCapture(stream, ctypes.byref(out))}"
        return said + self.afterwards(succeeded=said == "0")

    def afterwards(self, *, succeeded: bool) -> str:
        if "stream" in vars(self.scene):
            self.cuda.cuStreamEndCapture(self.scene.stream, ctypes.byref(ctypes.c_uint64()))
        if self.function.startswith("cuCtxCreate") and succeeded:
            self.scene.contexts.append(ctypes.c_uint64.from_buffer(self.arguments[0]))
        code = self.cuda.cuCtxSetCurrent(self.scene.primary) or self.cuda.cuCtxSynchronize()
        return f" then {code}" if code else ""

    def leaves_sound(self) -> bool:
        """Whether the process may make more calls."""
        return self.scene.end() and canary(self.cuda).lives()


def zero(kind: str) -> Any:
    return buffer() if kind.endswith("*") else ctypes.c_uint64(0)


def fault(cuda: ctypes.CDLL) -> None:
    """Leave the primary context with an error that only its end takes away."""
    scene = Scene(cuda, "")
    function = scene.made("cuModuleGetFunction", scene.module, b"fault")
    scene.must("cuLaunchKernel", function, *[1] * 6, 0, None, None, None)
    if not cuda.cuCtxSynchronize():
        raise SceneError("the kernel that faults did not")


@cache
def canary(cuda: ctypes.CDLL) -> Canary:
    return Canary(cuda)


def in_child(row: Row) -> str:
    """What a call gives in a process that has not used the driver."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        call = prepared(ctypes.CDLL("libcuda.so.1"), *row)
        os.write(theirs, (call if isinstance(call, str) else call.make()).encode())
        os._exit(0)
    os.close(theirs)
    said = os.read(ours, 1 << 12).decode()
    os.close(ours)
    os.waitpid(child, 0)
    return said or "crashes"


def say(*words: object) -> None:
    print(*words, sep="\t", flush=True)


def main() -> None:
    rows: list[Row] = [(name, what) for name, what in json.load(sys.stdin)]
    if rows[0][1] == BEFORE_INIT:
        for number, row in enumerate(rows):
            say(number)
            say(number, in_child(row))
        return
    cuda = ctypes.CDLL("libcuda.so.1")
    ready: dict[int, Call | str] = {}
    if rows[0][1] == AFTER_FAULT:  # all of them, in this process
        ready = {number: prepared(cuda, *row) for number, row in enumerate(rows)}
        fault(cuda)
    for number, row in enumerate(rows):
        say(number)
        call = ready.get(number) or prepared(cuda, *row)
        said = call if isinstance(call, str) else call.make()
        say(number, said)
        if " then " in said:
            return
        if not (ready or isinstance(call, str) or call.leaves_sound()):
            return


def prepared(cuda: ctypes.CDLL, function: str, what: str) -> Call | str:
    if not hasattr(cuda, function):
        return "absent"
    try:
        return Call(cuda, function, what)
    except (SceneError, AttributeError) as error:
        return f"not made: {error}"


if __name__ == "__main__":
    main()
