# SPDX-License-Identifier: Apache-2.0
"""Write every generated file. Usage: python -m kvgpu.protocol.generator ROOT INCLUDE_DIR"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kvgpu.protocol.generator import (
    emit,
    emit_docs,
    emit_guest,
    emit_host,
    emit_proof,
    emit_prototypes,
    nvml,
)
from kvgpu.protocol.generator.model import GeneratorError, Model
from kvgpu.protocol.generator.parse import load

OUTPUTS = {
    "protocol/include/kvgpu/opcodes.gen.h": emit.opcodes_h,
    "protocol/include/kvgpu/plain_calls.gen.h": emit.plain_calls_h,
    "guest/libcuda/generated/api.gen.h": emit_guest.api_h,
    "guest/libcuda/generated/exports.gen.cpp": emit_guest.exports_cpp,
    "guest/libcuda/generated/refused.gen.cpp": emit_guest.refused_cpp,
    "guest/libcuda/generated/proc_address.gen.cpp": emit_guest.proc_address_cpp,
    "guest/libcuda/generated/plain.gen.cpp": emit_guest.plain_cpp,
    "guest/libcuda/generated/error_names.gen.h": emit_guest.error_names_h,
    "guest/libcuda/generated/libcuda.map": emit_guest.version_script,
    "host/worker/generated/driver.gen.h": emit_host.driver_h,
    "host/worker/generated/handlers.gen.h": emit_host.handlers_h,
    "host/worker/generated/ops.gen.cpp": emit_host.ops_cpp,
    "host/worker/generated/plain.gen.cpp": emit_host.plain_cpp,
    "tests/data/prototypes.tsv": emit_prototypes.prototypes_tsv,
}
NVML_OUTPUTS = {
    "guest/libnvidia_ml/generated/exports.gen.cpp": nvml.exports_cpp,
    "guest/libnvidia_ml/generated/libnvidia-ml.map": nvml.version_script,
}


def texts(root: Path, include: Path) -> tuple[Model, dict[str, str]]:
    """Return the model, and what belongs into each file. Raises GeneratorError."""
    model, functions = load(root, include), nvml.load(root, include)
    found = {name: emitter(model) for name, emitter in OUTPUTS.items()}
    found |= {name: emit_nvml(functions) for name, emit_nvml in NVML_OUTPUTS.items()}
    docs = emit_docs.compatibility_md(model) + nvml.compatibility_md(functions)
    data = root / "tests/data"
    docs += emit_docs.workloads_md(data / "workloads.json")
    docs += emit_proof.coverage_md(model, data / "coverage.json", data / "unreachable.toml")
    docs += emit_proof.random_md(data / "random_programs.json")
    docs += emit_proof.differences_md(data / "error_differences.toml")
    return model, {**found, "docs/compatibility.md": docs}


def main(root: Path, include: Path) -> int:
    """Generate into `root`; print what changed. Returns the exit status."""
    try:
        model, found = texts(root, include)
        for name, text in found.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix in (".h", ".cpp"):
                text = _format(text, path)
            if not path.exists() or path.read_text() != text:
                path.write_text(text)
                print(f"gen: {name}")
    except GeneratorError as error:
        print(f"gen: {error}", file=sys.stderr)
        return 1
    print(f"gen: {len(model.rows)} served, {len(model.refused)} refused")
    return 0


def _format(text: str, path: Path) -> str:
    command = [str(Path(sys.executable).parent / "clang-format"), f"--assume-filename={path}"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
