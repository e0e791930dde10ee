# SPDX-License-Identifier: Apache-2.0
"""The guest's half: exports, refusals, plain stubs, the cuGetProcAddress table, the version script."""

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
from kvgpu.protocol.generator.model import Model, Param, Row, snake_case, symbol_of


def _parameters(row: Row) -> str:
    return ", ".join(f"{p.type} {p.name}".replace("* ", "*") for p in row.function.params)


def api_h(model: Model) -> str:
    """api.gen.h: the declarations that by_hand/ and plain.gen.cpp fulfil."""
    text = f'{banner(model)}#pragma once\n\n#include "by_hand/cuda_api.h"\n\nnamespace kvgpu::guest {{\n\n'
    for row in model.rows:
        params = _parameters(row)
        if row.stream == "default":
            params += ", CUstream default_stream"
        text += f"CUresult {snake_case(row.name)}({params});\n"
    return text + "\n}  // namespace kvgpu::guest\n"


def exports_cpp(model: Model) -> str:
    """exports.gen.cpp: the C ABI of what is served, with the per-thread twins."""
    text = f'{banner(model)}#include "by_hand/error_log.h"\n#include "by_hand/session.h"\n#include "by_hand/trace.h"\n'
    text += '#include "generated/api.gen.h"\n\n'
    text += "namespace guest = kvgpu::guest;\n\n"
    text += '#define EXPORT extern "C" __attribute__((visibility("default")))\n'
    # Where nothing is traced the arguments stay in their registers.
    text += "#define INLINE __attribute__((always_inline))\n\n"
    twins = {n: model.twin_of(n) for n in model.exported}
    for row in model.rows:
        text += _export(row, row.name, "CU_STREAM_LEGACY")
    for name, twin in twins.items():
        if twin is not None:
            text += _export(twin, name, "CU_STREAM_PER_THREAD")
    return text


def _export(row: Row, symbol: str, default_stream: str) -> str:
    names = [p.name for p in row.function.params]
    if row.stream == "default":
        names.append(default_stream)
    elif row.stream is not None and default_stream == "CU_STREAM_PER_THREAD":
        names[names.index(row.stream)] = f"{row.stream} ? {row.stream} : {default_stream}"
    check = (
        ""
        if row.before_init
        else "if (!guest::Session::is_open()) return CUDA_ERROR_NOT_INITIALIZED;\n"
    )
    if check and row.cls == "local" and not row.runs_poisoned:
        check += (
            "if (const CUresult lasting = guest::Session::get().lasting_error()) return lasting;\n"
        )
    params = [p.name for p in row.function.params]
    entry = f'"{symbol}", "{row.cls}", "{" ".join(params)}"'
    return (
        f"EXPORT CUresult CUDAAPI {symbol}({_parameters(row)}) {{\n"
        f"  static constinit guest::TracedEntry entry{{{entry}}};\n"
        f'  return guest::answered("{symbol}", guest::traced(entry, [&]() INLINE {{\n{check}'
        f"  return guest::{snake_case(row.name)}({', '.join(names)});\n}}"
        f"{''.join(', ' + name for name in params)}));\n}}\n"
    )


def refused_cpp(model: Model) -> str:
    """refused.gen.cpp: every other exported name. No header: their parameters do not matter."""
    text = f'{banner(model)}#include "by_hand/refuse.h"\n\n'
    text += '#define EXPORT extern "C" __attribute__((visibility("default")))\n\n'
    refused = model.refused
    text += f"namespace kvgpu::guest {{\nconst RefusedName REFUSED_NAMES[{len(refused)}] = {{\n"
    text += "".join(f'    {{"{name}", "{why}"}},\n' for name, why in refused.items())
    text += f"}};\nconst int N_REFUSED_NAMES = {len(refused)};\n"
    text += (
        f"std::atomic<uint64_t> refused_calls[{len(refused)}];\n}}  // namespace kvgpu::guest\n\n"
    )
    for index, name in enumerate(refused):
        text += f"EXPORT int {name}() {{ return kvgpu::guest::refuse({index}); }}\n"
    return text


# In the headers, but driver 580 knows them not (tests/data/driver-580-getprocaddress.tsv).
_UNKNOWN_TO_THE_DRIVER = {"cuEventCreateFromEGLSync", "cuWGLGetDevice"}


def proc_address_cpp(model: Model) -> str:
    """proc_address.gen.cpp: (name, version, per thread) -> symbol, sorted by name and version."""
    names = set(model.exported)
    entries = []
    for base, version, suffix in model.typedefs:
        symbol = symbol_of(base, version, suffix, model.typedefs, names)
        if symbol in names - _UNKNOWN_TO_THE_DRIVER:
            entries.append((base, version, bool(suffix), symbol))
    entries += [
        ("cuGetProcAddress", 11030, False, "cuGetProcAddress"),
        ("cuGetProcAddress", 12000, False, "cuGetProcAddress_v2"),
    ]
    entries = sorted(set(entries))
    text = f'{banner(model)}#include "by_hand/proc_address.h"\n\n'
    for symbol in sorted({e[3] for e in entries}):
        text += f'extern "C" int {symbol}();\n'
    text += "\nnamespace kvgpu::guest {\n\nconst ProcAddress PROC_ADDRESSES[] = {\n"
    for base, version, per_thread, symbol in entries:
        flag = "true" if per_thread else "false"
        text += f'    {{"{base}", {version}, {flag}, reinterpret_cast<void*>(&{symbol})}},\n'
    text += (
        f"}};\nconst size_t N_PROC_ADDRESSES = {len(entries)};\n\n}}  // namespace kvgpu::guest\n"
    )
    return text


def version_script(model: Model) -> str:
    """libcuda.map: the exported names and nothing else."""
    names = "".join(f"    {name};\n" for name in model.exported)
    return f"{{\n  global:\n{names}  local:\n    *;\n}};\n"


def plain_cpp(model: Model) -> str:
    """plain.gen.cpp: stubs of plain rows."""
    text = (
        f'{banner(model)}#include <bit>\n\n#include "by_hand/call.h"\n#include "by_hand/objects.h"\n'
        '#include "generated/api.gen.h"\n#include "kvgpu/plain_calls.gen.h"\n\n'
        "namespace kvgpu::guest {\n\n"
    )
    for row in model.rows:
        if row.plain_stub:
            text += _plain(row)
    return text + "}  // namespace kvgpu::guest\n"


# Driver 580 makes a call on one of these in the context that it is of, whichever is current.
_IN_THEIR_CONTEXT = frozenset({"CUtexref", "CUsurfref"})


def _plain(row: Row) -> str:
    body = ""
    for param in outs(row):
        body += f"  if ({param.name} == nullptr) return CUDA_ERROR_INVALID_VALUE;\n"
    handles = [p for p in ins(row) if p.type in HANDLE_KINDS]
    flags = "CaptureRule::ALLOWED" if row.allowed_in_capture else "CaptureRule::FORBIDDEN"
    if row.context_optional:
        flags += ", nullptr, ContextRule::OPTIONAL"
    if handles and handles[0].type in _IN_THEIR_CONTEXT:
        of = handles.pop(0)
        flags += ", of->context"
        body += f"  const auto* const of = find({of.name});\n"
        body += f"  if (of == nullptr) return {no_such_handle(of)};\n"
    body += f"  Call call({flags});\n  if (call.status() != CUDA_SUCCESS) return call.status();\n"
    body += "".join(map(_check_handle, handles))
    fields = ["call.context()"]
    for param in ins(row):
        if param.type in HANDLE_KINDS:
            fields.append(f"to_wire({param.name})")
        else:
            fields.append(to_word(param.type, param.name))
    body += f"  const wire::{row.name}_in in{{{', '.join(fields)}}};\n"
    if outs(row):
        body += f"  wire::{row.name}_out out;\n"
        body += f"  const CUresult result = call.sync(wire::Op::{row.name}, in, &out);\n"
        body += "  if (result != CUDA_SUCCESS) return result;\n"
        for param in outs(row):
            word = f"out.{param.name}"
            if param.pointee in HANDLE_KINDS:  # 0: of an object that is gone
                body += f"  if ({word} == 0) return CUDA_ERROR_INVALID_VALUE;\n"
                body += f"  *{param.name} = from_wire<{param.pointee}>({word});\n"
            else:
                body += f"  *{param.name} = {from_word(param.pointee, word)};\n"
        body += "  return CUDA_SUCCESS;\n"
    elif row.destroys:
        body += f"  const CUresult result = call.sync(wire::Op::{row.name}, in);\n"
        body += (
            f"  if (result == CUDA_SUCCESS) forget(to_wire({row.destroys}));\n  return result;\n"
        )
    else:
        body += f"  return call.sync(wire::Op::{row.name}, in);\n"
    return f"CUresult {snake_case(row.name)}({_parameters(row)}) {{\n{body}}}\n\n"


def _check_handle(param: Param) -> str:
    kind = HANDLE_KINDS[param.type]
    text = f"  if (!is_live(wire::Kind::{kind}, {param.name})) return {no_such_handle(param)};\n"
    if kind == "FUNCTION":
        # The driver may load it now, which may block: that is the description's to do.
        text += f"  if (const CUresult bad = need_description(*find({param.name}))) return bad;\n"
    return text


def error_names_h(model: Model) -> str:
    """error_names.gen.h: CUresult by name; the text is the name in plain words."""
    text = f'{banner(model)}#pragma once\n\n#include "by_hand/cuda_api.h"\n\nnamespace kvgpu::guest {{\n\n'
    text += (
        "struct ErrorName {\n  CUresult error;\n  const char* name;\n  const char* text;\n};\n\n"
    )
    text += "inline constexpr ErrorName ERROR_NAMES[] = {\n"
    for name, _ in model.errors:
        words = name.removeprefix("CUDA_ERROR_").removeprefix("CUDA_").replace("_", " ").lower()
        words = "no error" if name == "CUDA_SUCCESS" else words
        text += f'    {{{name}, "{name}", "{words}"}},\n'
    return text + "};\n\n}  // namespace kvgpu::guest\n"
