# SPDX-License-Identifier: Apache-2.0
"""What the generator knows: prototypes of the headers, rows of api.toml, their agreement."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

CLASSES = frozenset({"local", "async", "sync", "completion", "bulk", "callback"})
ROW_KEYS = frozenset(
    "class opcode wire stream blocks poisoned destroys deferred allowed_in_capture context"
    " limits stub before_init".split()
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
    deferred: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """An entry point that is served."""

    function: Function
    cls: str
    opcode: int | None = None
    plain: bool = False
    plain_stub: bool = False  # the guest's half of a plain row, too
    stream: str | None = None
    blocks: bool = False
    runs_poisoned: bool = False
    destroys: str | None = None
    deferred: tuple[str, ...] = ()
    allowed_in_capture: bool = False
    context_optional: bool = False
    before_init: bool = False  # all others answer NOT_INITIALIZED until cuInit has been called
    limits: str | None = None

    @property
    def name(self) -> str:
        return self.function.name

    @property
    def route(self) -> str:
        """How the worker runs the record: in stream order, at once, or in the pool."""
        if self.cls in ("async", "bulk", "callback") and self.stream is not None:
            return "enqueue"
        return "block" if self.blocks else "execute"


@dataclass(frozen=True, slots=True)
class Api:
    """What api.toml says."""

    rows: list[Row]
    control: list[ControlRecord]
    refused: dict[str, str]  # name -> why
    twins: dict[str, str]  # name -> the name it is the per-thread-default-stream variant of
    families: dict[str, str]  # refused name -> key of [reasons]


@dataclass(slots=True)
class Model:
    """Everything the emitters need."""

    api: Api
    opcode_minors: dict[str, int]  # records by name
    exported: list[str]
    functions: dict[str, Function]
    # (base name, version, "" | "_ptsz" | "_ptds") from the PFN_ typedefs
    typedefs: list[tuple[str, int, str]]
    errors: list[tuple[str, int]]  # of CUresult
    headers_sha256: str = ""
    by_name: dict[str, Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.by_name = {row.name: row for row in self.rows}
        self._check_names()

    @property
    def rows(self) -> list[Row]:
        return self.api.rows

    @property
    def control(self) -> list[ControlRecord]:
        return self.api.control

    @property
    def refused(self) -> dict[str, str]:
        """Exported names that are refused, twins of refused names among them, and why."""
        twins = {
            name: self.api.refused[base]
            for name, base in self.api.twins.items()
            if base in self.api.refused
        }
        return dict(sorted((self.api.refused | twins).items()))

    def twin_of(self, name: str) -> Row | None:
        """Return the served row whose per-thread-default-stream variant `name` is."""
        return self.by_name.get(self.api.twins.get(name, ""))

    def _check_names(self) -> None:
        """Raise GeneratorError unless api.toml has each entry point exactly once."""
        listed = [*self.by_name, *self.api.refused, *self.api.twins]
        known = {*self.exported, *self.functions}
        if twice := sorted({name for name in listed if listed.count(name) > 1}):
            raise GeneratorError(f"api.toml has {twice} more than once")
        if missing := sorted(known - set(listed)):
            raise GeneratorError(f"api.toml has no row for {missing}")
        if invented := sorted(set(listed) - known):
            raise GeneratorError(f"api.toml has rows for {invented}, which no driver has")
        if unserved := sorted(set(self.by_name) - set(self.exported)):
            raise GeneratorError(f"api.toml serves names the driver does not export: {unserved}")
        late = {error for row in self.rows for error in row.deferred}
        late |= {error for record in self.control for error in record.deferred}
        if unknown := sorted(late - {name for name, _ in self.errors}):
            raise GeneratorError(f"api.toml: cuda.h has no {unknown}")
        for name, base in self.api.twins.items():
            if name not in (f"{base}_ptsz", f"{base}_ptds"):
                raise GeneratorError(f"api.toml [twins]: {name} is no twin of {base}")
            row = self.by_name.get(base)
            if row is not None and row.stream is None:
                raise GeneratorError(f"api.toml [{base}]: {name} needs its `stream`")


def snake_case(name: str) -> str:
    """Turn cuMemcpyHtoDAsync_v2 into memcpy_htod_async_v2."""
    name = name.removeprefix("cu").replace("D2D", "D2d").replace("PCIBus", "PciBus")
    name = re.sub(r"(?<=Memcpy)([ADH]to)([ADH])", lambda m: m[1] + m[2].lower(), name)
    name = re.sub(r"([123])D(?=[A-Z_]|$)", r"_\1d", name)  # Memcpy2DAsync
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


def read_api(path: Path, functions: dict[str, Function]) -> Api:
    """Read api.toml and check it against the prototypes."""
    data = tomllib.loads(path.read_text())
    reasons: dict[str, str] = data.pop("reasons")
    families: dict[str, str] = data.pop("refused")
    twins: dict[str, str] = data.pop("twins")
    if set(families.values()) != set(reasons):
        odd = sorted(set(families.values()) ^ set(reasons))
        raise GeneratorError(f"api.toml: {odd} stand in one of [refused] and [reasons] only")
    if list(families) != sorted(families):
        raise GeneratorError("api.toml [refused] is not sorted")
    control = [
        ControlRecord(
            name, int(entry["opcode"]), str(entry["route"]), tuple(entry.get("deferred", ()))
        )
        for name, entry in data.pop("control").items()
    ]
    rows = [_row(name, entry, functions) for name, entry in data.items()]
    _check_opcodes(rows, control)
    refused = {name: reasons[family] for name, family in families.items()}
    return Api(rows, control, refused, twins, families)


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
    late = cls == "async" and entry.get("stream") != "default"
    late = late or (cls in ("bulk", "callback") and "opcode" in entry)
    if late and "deferred" not in entry:
        raise GeneratorError(f"api.toml [{name}]: what is not waited for lists its deferred errors")
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
        plain_stub=entry.get("wire") == "plain" and entry.get("stub") != "by hand",
        stream=None if stream is None else str(stream),
        blocks=bool(entry.get("blocks", False)),
        runs_poisoned=entry.get("poisoned") == "runs",
        destroys=None if "destroys" not in entry else str(entry["destroys"]),
        deferred=tuple(str(d) for d in deferred),
        allowed_in_capture=bool(entry.get("allowed_in_capture", False)),
        context_optional=entry.get("context") == "optional",
        before_init=bool(entry.get("before_init", False)),
        limits=None if "limits" not in entry else str(entry["limits"]),
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
