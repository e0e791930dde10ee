# SPDX-License-Identifier: Apache-2.0
"""What the generator knows: prototypes of the headers, rows of api.toml, their agreement."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

CLASSES = frozenset({"local", "async", "sync", "completion", "bulk", "callback"})
ROW_KEYS = frozenset(
    "class opcode wire stream blocks poisoned destroys deferred allowed_in_capture context".split()
)
ROUTES = frozenset({"enqueue", "execute", "block", "direct", "event"})


class GeneratorError(Exception):
    """api.toml, the name list or a header contradict one another; the message says where."""


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter, its type spelt as in the header."""

    name: str
    type: str

    @property
    def is_pointer(self) -> bool:
        return self.type.endswith("*")

    @property
    def pointee(self) -> str:
        return self.type.removesuffix("*").strip()


@dataclass(frozen=True, slots=True)
class Function:
    """An entry point as the header declares it."""

    name: str
    params: tuple[Param, ...]


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """A record that belongs to no entry point."""

    name: str
    opcode: int
    route: str


@dataclass(frozen=True, slots=True)
class Row:
    """An entry point that is served."""

    function: Function
    cls: str
    opcode: int | None = None
    plain: bool = False
    stream: str | None = None
    blocks: bool = False
    runs_poisoned: bool = False
    destroys: str | None = None
    deferred: tuple[str, ...] = ()
    allowed_in_capture: bool = False
    context_optional: bool = False

    @property
    def name(self) -> str:
        return self.function.name

    @property
    def route(self) -> str:
        """How the worker runs the record: in stream order, at once, or in the pool."""
        if self.cls in ("async", "bulk", "callback") and self.stream is not None:
            return "enqueue"
        return "block" if self.blocks else "execute"


@dataclass(slots=True)
class Model:
    """Everything the emitters need."""

    rows: list[Row]
    control: list[ControlRecord]
    exported: list[str]
    functions: dict[str, Function]
    # (base name, version, "" | "_ptsz" | "_ptds") from the PFN_ typedefs
    typedefs: list[tuple[str, int, str]]
    errors: list[tuple[str, int]]  # of CUresult
    headers_sha256: str = ""
    by_name: dict[str, Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.by_name = {row.name: row for row in self.rows}

    @property
    def refused(self) -> list[str]:
        """Exported names that are neither a row nor the per-thread twin of one."""
        return [n for n in self.exported if n not in self.by_name and self.twin_of(n) is None]

    def twin_of(self, name: str) -> Row | None:
        """Return the row whose per-thread-default-stream variant `name` is."""
        base = re.sub(r"_pt[sd]z?s?$", "", name) if name.endswith(("_ptsz", "_ptds")) else name
        row = self.by_name.get(base)
        return row if row is not None and base != name and row.stream is not None else None


def snake_case(name: str) -> str:
    """Turn cuMemcpyHtoDAsync_v2 into memcpy_htod_async_v2."""
    name = name.removeprefix("cu").replace("HtoD", "Htod").replace("DtoH", "Dtoh")
    name = name.replace("DtoD", "Dtod").replace("PCIBus", "PciBus")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def symbol_of(
    base: str, version: int, suffix: str, typedefs: list[tuple[str, int, str]], names: set[str]
) -> str:
    """Return the symbol of a PFN_ typedef: the n-th version of a name has the n-th suffix."""
    versions = sorted({v for b, v, s in typedefs if b == base and not s})
    generations = [base, *(f"{base}_v{i}" for i in range(2, 10) if f"{base}_v{i}" in names)]
    if base not in names:
        generations = generations[1:]
    # A per-thread twin carries the version in which it appeared and belongs to the generation of
    # that time.
    index = sum(v <= version for v in versions) - 1
    if not 0 <= index < len(generations):
        raise GeneratorError(f"{base}: version {version} has no symbol among {generations}")
    return generations[index] + suffix


def read_api(path: Path, functions: dict[str, Function]) -> tuple[list[Row], list[ControlRecord]]:
    """Read api.toml and check it against the prototypes."""
    data = tomllib.loads(path.read_text())
    control = [
        ControlRecord(name, int(entry["opcode"]), str(entry["route"]))
        for name, entry in data.pop("control").items()
    ]
    rows = [_row(name, entry, functions) for name, entry in data.items()]
    _check_opcodes(rows, control)
    return rows, control


def _row(name: str, entry: dict[str, object], functions: dict[str, Function]) -> Row:
    unknown = set(entry) - ROW_KEYS
    if unknown:
        raise GeneratorError(f"api.toml [{name}]: unknown keys {sorted(unknown)}")
    if name not in functions:
        raise GeneratorError(f"api.toml [{name}]: no such function in the headers")
    function = functions[name]
    cls = str(entry["class"])
    if cls not in CLASSES:
        raise GeneratorError(f"api.toml [{name}]: class {cls!r} is none of {sorted(CLASSES)}")
    if cls == "async" and "deferred" not in entry and entry.get("stream") != "default":
        raise GeneratorError(f"api.toml [{name}]: an async row lists its deferred errors")
    stream = entry.get("stream")
    if stream not in (None, "default") and stream not in [p.name for p in function.params]:
        raise GeneratorError(f"api.toml [{name}]: no parameter {stream!r}")
    deferred = entry.get("deferred", [])
    opcode = entry.get("opcode")
    assert isinstance(deferred, list)
    assert opcode is None or isinstance(opcode, int)
    return Row(
        function=function,
        cls=cls,
        opcode=opcode,
        plain=entry.get("wire") == "plain",
        stream=None if stream is None else str(stream),
        blocks=bool(entry.get("blocks", False)),
        runs_poisoned=entry.get("poisoned") == "runs",
        destroys=None if "destroys" not in entry else str(entry["destroys"]),
        deferred=tuple(str(d) for d in deferred),
        allowed_in_capture=bool(entry.get("allowed_in_capture", False)),
        context_optional=entry.get("context") == "optional",
    )


def _check_opcodes(rows: list[Row], control: list[ControlRecord]) -> None:
    seen: dict[int, str] = {}
    pairs = [(c.opcode, c.name) for c in control]
    pairs += [(r.opcode, r.name) for r in rows if r.opcode is not None]
    for opcode, name in pairs:
        if opcode in seen:
            raise GeneratorError(f"api.toml: opcode {opcode} for {seen[opcode]} and {name}")
        seen[opcode] = name
    for record in control:
        if record.route not in ROUTES:
            raise GeneratorError(f"api.toml [control] {record.name}: route {record.route!r}")
    for row in rows:
        if row.plain and row.opcode is None:
            raise GeneratorError(f"api.toml [{row.name}]: a plain row needs an opcode")
