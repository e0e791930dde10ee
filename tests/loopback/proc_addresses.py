#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ask cuGetProcAddress of the loader's libcuda.so.1 about many names; print what it answers.

Reads lines `form name flags version` from standard input and answers each with
`code/status symbol`: form 5 is cuGetProcAddress_v2, form 4 the older one without a status; `-` is
a status that was not written, or a null pointer. The first line is cuDriverGetVersion's answer.
Runs natively, too: python3 tests/loopback/proc_addresses.py < QUESTIONS.
"""

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path

NAMES = Path(__file__).resolve().parents[1] / "data/names-cuda13.txt"
UNTOUCHED = 77


def symbols(cuda: ctypes.CDLL) -> dict[int, str]:
    """Map the address of each function that the library exports to its name."""
    found = {}
    for name in NAMES.read_text().split():
        function = getattr(cuda, name, None)
        if function is not None:
            found[ctypes.cast(function, ctypes.c_void_p).value or 0] = name
    return found


def asker(cuda: ctypes.CDLL, form: str) -> Callable[[str, int, int], str]:
    """Return a function that asks the 4- or the 5-argument form."""
    by_address = symbols(cuda)
    name = "cuGetProcAddress_v2" if form == "5" else "cuGetProcAddress"

    def ask(symbol: str, flags: int, version: int) -> str:
        pointer = ctypes.c_void_p(UNTOUCHED)
        status = ctypes.c_int(UNTOUCHED)
        arguments = [symbol.encode(), ctypes.byref(pointer), version, ctypes.c_uint64(flags)]
        if form == "5":
            arguments.append(ctypes.byref(status))
        code = getattr(cuda, name)(*arguments)
        text = "-" if status.value == UNTOUCHED else str(status.value)
        address = pointer.value
        found = "untouched" if address == UNTOUCHED else by_address.get(address or 0, "-")
        return f"{code}/{text} {found}"

    return ask


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    version = ctypes.c_int()
    assert cuda.cuDriverGetVersion(ctypes.byref(version)) == 0
    print(version.value)
    ask = {form: asker(cuda, form) for form in "45"}
    for line in sys.stdin:
        form, name, flags, asked = line.split()
        print(ask[form](name.strip("'"), int(flags), int(asked)))


if __name__ == "__main__":
    main()
