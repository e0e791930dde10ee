# SPDX-License-Identifier: Apache-2.0
"""The parameters of each entry point, from tests/data/prototypes.tsv."""

from __future__ import annotations

from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_OLD = frozenset({"cuMemGetInfo"} | {f"cuMemcpy{way}" for way in ("AtoA", "AtoH", "HtoA")}) | {
    *("cuMemcpyAtoHAsync", "cuMemcpyHtoAAsync"),
}


@cache
def prototypes() -> dict[str, list[tuple[str, str]]]:
    found = {}
    for line in (ROOT / "tests/data/prototypes.tsv").read_text().splitlines():
        if not line.startswith("#"):
            name, *texts = line.split("\t")
            pairs = [text.rpartition(" ") for text in texts]
            found[name] = [(what, kind) for kind, _, what in pairs]
    return found


def parameters(function: str) -> list[tuple[str, str]]:
    """Name and type of each."""
    return prototypes()[function]


def is_old(function: str) -> bool:
    """Of CUDA before 3.2, with addresses of 32 bits: it works in contexts of that time only."""
    kinds = " ".join(kind for _, kind in prototypes().get(function, []))
    parts = ("CUdeviceptr_v1", "MEMCPY2D_v1", "MEMCPY3D_v1", "DESCRIPTOR_v1")
    return function in _OLD or any(part in kinds for part in parts)
