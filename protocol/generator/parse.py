# SPDX-License-Identifier: Apache-2.0
"""Headers in, model out. They are NVIDIA's, fetched as wheels, pinned by hash in inputs.lock."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path

from clang import cindex

from kvgpu.protocol.generator.model import Function, GeneratorError, Model, Param, read_api

TYPEDEF_HEADERS = (
    "cudaTypedefs.h",
    "cudaGLTypedefs.h",
    "cudaProfilerTypedefs.h",
    "cudaEGLTypedefs.h",
    "cudaVDPAUTypedefs.h",
)
# cudaProfiler.h comes in another wheel. Of what takes nothing the type says all.
_PROFILER_SWITCH = re.compile(r"PFN_(cuProfiler\w+)_v\d+\)\(void\)")
_TYPEDEF = re.compile(r"\(CUDAAPI \*PFN_(cu\w+?)_v(\d+)(_ptsz|_ptds)?\)")


def check_inputs(lock: Path, include: Path) -> str:
    """Compare the headers with inputs.lock; return the digest of cuda.h.

    Raises:
        GeneratorError: a header is not the pinned one.
    """
    pinned: dict[str, str] = tomllib.loads(lock.read_text())["sha256"]
    for name, wanted in pinned.items():
        found = hashlib.sha256((include / name).read_bytes()).hexdigest()
        if found != wanted:
            raise GeneratorError(
                f"{name} has sha256 {found}, inputs.lock wants {wanted}: run `make setup`, or "
                "update inputs.lock together with the pinned wheel"
            )
    return pinned["cuda.h"]


def load(root: Path, include: Path) -> Model:
    """Build the model from `root`/protocol and the headers in `include`."""
    digest = check_inputs(root / "protocol/inputs.lock", include)
    unit = parse_header(include, "cuda.h", "__CUDA_API_VERSION_INTERNAL")
    functions = functions_of(unit, "cu")
    switches = _PROFILER_SWITCH.findall((include / "cudaProfilerTypedefs.h").read_text())
    without_parameters = {name: Function(name, ()) for name in switches}
    api = read_api(root / "protocol/api.toml", functions | without_parameters)
    exported = (root / "tests/data/names-cuda13.txt").read_text().split()
    opcode_minors = _opcode_minors((root / "tests/data/opcodes.tsv").read_text())
    typedefs: list[tuple[str, int, str]] = []
    for name in TYPEDEF_HEADERS:
        found = _TYPEDEF.findall((include / name).read_text())
        typedefs += [(base, int(version), suffix) for base, version, suffix in found]
    errors = _errors(unit)
    return Model(api, opcode_minors, exported, functions, sorted(set(typedefs)), errors, digest)


def _opcode_minors(recorded: str) -> dict[str, int]:
    """Map each record's name to the minor version of the protocol that brought it."""
    minors = {}
    minor = 1
    for line in recorded.splitlines():
        if line.startswith("# protocol 0."):
            minor = int(line.removeprefix("# protocol 0."))
        else:
            minors[line.split("\t")[1]] = minor
    return minors


def parse_header(include: Path, header: str, define: str) -> cindex.TranslationUnit:
    """Parse a header, with `define`, under which it declares every version of a function.

    Raises:
        GeneratorError: it does not parse.
    """
    index = cindex.Index.create()
    source = f"#include <{header}>\n"
    unit = index.parse(
        "api.h",
        args=["-x", "c", f"-I{include}", f"-I{_gcc_include()}", f"-D{define}"],
        unsaved_files=[("api.h", source)],
    )
    errors = [d.spelling for d in unit.diagnostics if d.severity >= cindex.Diagnostic.Error]
    if errors:
        raise GeneratorError(f"{header} does not parse: {errors[:3]}")
    return unit


def _errors(unit: cindex.TranslationUnit) -> list[tuple[str, int]]:
    """Return the enumerators of CUresult."""
    for cursor in unit.cursor.get_children():
        if cursor.kind == cindex.CursorKind.ENUM_DECL and cursor.spelling == "cudaError_enum":
            return [(c.spelling, c.enum_value) for c in cursor.get_children()]
    raise GeneratorError("cuda.h has no enum cudaError_enum")


def functions_of(unit: cindex.TranslationUnit, prefix: str) -> dict[str, Function]:
    """Return the functions that a header declares, by name."""
    functions = {}
    for cursor in unit.cursor.get_children():
        if cursor.kind == cindex.CursorKind.FUNCTION_DECL and cursor.spelling.startswith(prefix):
            params = tuple(Param(a.spelling, a.type.spelling) for a in cursor.get_arguments())
            functions[cursor.spelling] = Function(cursor.spelling, params)
    return functions


def _gcc_include() -> str:
    """Return gcc's own include folder: the libclang wheel brings no stddef.h."""
    candidates = sorted(Path("/usr/lib/gcc/x86_64-linux-gnu").glob("*/include/stddef.h"))
    if not candidates:
        raise GeneratorError("no gcc headers: apt-get install gcc")
    return str(candidates[-1].parent)
