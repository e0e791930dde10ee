# SPDX-License-Identifier: Apache-2.0
"""What the traces of programs (KVGPU_TRACE) say that they called."""

from __future__ import annotations

from pathlib import Path


def write_reached(folder: Path) -> None:
    """Read and remove the traces of a folder: each entry point and CUresult into reached.tsv."""
    calls = set()
    for path in folder.glob("trace.*"):
        if path.suffix != ".json":
            lines = (line.split("\t") for line in path.read_text(errors="replace").splitlines())
            calls |= {(words[2], words[4]) for words in lines if len(words) > 9}
        path.unlink()
    text = "".join(f"{name}\t{code}\n" for name, code in sorted(calls))
    (folder / "reached.tsv").write_text(text)
