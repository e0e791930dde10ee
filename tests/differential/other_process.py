# SPDX-License-Identifier: Apache-2.0
"""Prints IPC handles of memory and an event of its own; they last until its standard input ends."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from differential.scene_base import Base


def main() -> None:
    base = Base(ctypes.CDLL("libcuda.so.1"), "")
    memory = base.own_handle("cuIpcGetMemHandle", base.memory)
    event = base.own_handle("cuIpcGetEventHandle", base.shared_event)
    print(bytes(memory).hex(), bytes(event).hex(), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
