# SPDX-License-Identifier: Apache-2.0
"""The worker's half: the driver's function table, plain handlers, the dispatch table."""

from __future__ import annotations

from kvgpu.protocol.generator.emit import (
    HANDLE_KINDS,
    banner,
    from_word,
    ins,
    no_such_handle,
    outs,
    to_word,
)
from kvgpu.protocol.generator.model import Model, Row, snake_case

# Of the records that are no entry point: these neither enqueue nor read GPU work.
RUN_POISONED = ("ACK_ERROR", "ATTRIBUTE_AGAIN", "HELLO", "HOST_SYNC", "UPLOAD", "WAITED")


def driver_h(model: Model) -> str:
    """driver.gen.h: a pointer per function of the driver that cuda.h declares and the driver exports."""
    names = [n for n in model.exported if n in model.functions]
    text = (
        f'{banner(model)}#pragma once\n\n#include <cuda.h>\n\n#include "absent.h"\n\n'
        "namespace kvgpu::worker {\n\n// Where the loaded driver has no such function: Absent.\n"
        "struct DriverTable : DriverTableBase {\n"
    )
    text += "".join(f"  decltype(&::{n}) {n} = nullptr;\n" for n in names)
    text += "\n  template <typename Resolve>\n  void fill(Resolve resolve) {\n"
    text += "".join(f'    put<{i}>({n}, "{n}", resolve);\n' for i, n in enumerate(names))
    return text + "  }\n};\n\n}  // namespace kvgpu::worker\n"


def handlers_h(model: Model) -> str:
    """handlers.gen.h: what handlers/ and plain.gen.cpp fulfil."""
    text = f'{banner(model)}#pragma once\n\n#include "session.h"\n\nnamespace kvgpu::worker {{\n\n'
    for name in _handler_names(model):
        text += f"CUresult {name}(Session& session, const Task& task, ReplyWriter& reply);\n"
    return text + "\n}  // namespace kvgpu::worker\n"


def _handler_names(model: Model) -> list[str]:
    control = [snake_case(c.name) for c in model.control if c.route not in ("event", "direct")]
    return control + [snake_case(r.name) for r in model.rows if r.opcode is not None]


def _deferred(errors: tuple[str, ...]) -> str:
    """Name the array that holds a list of errors; rows with the same list share it."""
    words = [error.removeprefix("CUDA_ERROR_") for error in errors]
    return "_OR_".join(words) or "{}"


def ops_cpp(model: Model) -> str:
    """ops.gen.cpp: opcode -> how to run it."""
    text = f'{banner(model)}#include "ops.h"\n\n#include <algorithm>\n\n#include "generated/handlers.gen.h"\n\n'
    text += "namespace kvgpu::worker {\n\nnamespace {\n\nstruct Row {\n  wire::Op op;\n  OpInfo info;\n};\n\n"
    lists = {r.deferred for r in model.rows if r.opcode} | {c.deferred for c in model.control}
    for errors in sorted(lists - {()}):
        text += f"constexpr CUresult {_deferred(errors)}[] = {{{', '.join(errors)}}};\n"
    text += "\nconstexpr Row ROWS[] = {\n"
    for record in model.control:
        if record.route == "event":
            continue
        late = _deferred(record.deferred)
        handler = "nullptr" if record.route == "direct" else f"&{snake_case(record.name)}"
        runs = "true" if record.name in RUN_POISONED else "false"
        text += (
            f'    {{wire::Op::{record.name}, {{"{record.name}", Route::{record.route.upper()}, {runs}, '
            f"{handler}, {late}}}}},\n"
        )
    for row in model.rows:
        if row.opcode is not None:
            runs = "true" if row.runs_poisoned else "false"
            late = _deferred(row.deferred)
            text += (
                f'    {{wire::Op::{row.name}, {{"{row.name}", Route::{row.route.upper()}, {runs}, '
                f"&{snake_case(row.name)}, {late}}}}},\n"
            )
    text += "};\n\nconstexpr const char* ENTRY_POINTS[] = {\n"
    text += "".join(f'    "{name}",\n' for name in sorted(model.exported))
    return (
        text + "};\n\n}  // namespace\n\nconst OpInfo* find_op(uint16_t opcode) {\n"
        "  static const auto table = [] {\n    std::array<const OpInfo*, MAX_OPCODE + 1> t{};\n"
        "    for (const Row& row : ROWS) t[static_cast<uint16_t>(row.op)] = &row.info;\n"
        "    return t;\n  }();\n  return opcode <= MAX_OPCODE ? table[opcode] : nullptr;\n}\n\n"
        "const char* find_entry_point(std::string_view name) {\n"
        "  const auto found = std::lower_bound(std::begin(ENTRY_POINTS), std::end(ENTRY_POINTS), name);\n"
        "  return found != std::end(ENTRY_POINTS) && *found == name ? *found : nullptr;\n}\n\n"
        "}  // namespace kvgpu::worker\n"
    )


def plain_cpp(model: Model) -> str:
    """plain.gen.cpp: handlers of plain rows."""
    text = (
        f'{banner(model)}#include <bit>\n\n#include "generated/handlers.gen.h"\n'
        '#include "kvgpu/plain_calls.gen.h"\n\n'
        "namespace kvgpu::worker {\n\n"
    )
    for row in model.rows:
        if row.plain:
            text += _plain(row)
    return text + "}  // namespace kvgpu::worker\n"


def _plain(row: Row) -> str:
    body = f"  wire::{row.name}_in in;\n  if (!task.read(&in)) return session.violation(task);\n"
    body += "  if (const CUresult bad = session.enter(in.context)) return bad;\n"
    args = []
    for param in row.function.params:
        if param.is_pointer:
            body += f"  {param.pointee} {param.name}{{}};\n"
            args.append(f"&{param.name}")
        elif param.type in HANDLE_KINDS:
            body += (
                f"  {param.type} {param.name};\n"
                f"  if (!session.handles.get(in.{param.name}, &{param.name}))"
                f" return {no_such_handle(param)};\n"
            )
            args.append(param.name)
        else:
            args.append(from_word(param.type, f"in.{param.name}"))
    body += f"  if (session.driver->{row.name} == nullptr) return CUDA_ERROR_NOT_SUPPORTED;\n"
    body += f"  const CUresult result = session.driver->{row.name}({', '.join(args)});\n"
    if row.destroys:
        body += f"  if (result == CUDA_SUCCESS) session.forget(in.{row.destroys});\n"
    if outs(row):
        values = ", ".join(
            f"session.handles.handle_of({p.name})"
            if p.pointee in HANDLE_KINDS
            else to_word(p.pointee, p.name)
            for p in outs(row)
        )
        body += f"  reply.put(wire::{row.name}_out{{{values}}});\n"
    if not outs(row):
        body += "  (void)reply;\n"
    assert ins(row) is not None
    return (
        f"CUresult {snake_case(row.name)}(Session& session, const Task& task, ReplyWriter& reply) {{\n"
        f"{body}  return result;\n}}\n\n"
    )
