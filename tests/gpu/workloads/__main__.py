# SPDX-License-Identifier: Apache-2.0
"""python -m gpu.workloads NAME FILE: run one workload here and write its record as JSON."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict
from pathlib import Path

from .catalog import BY_NAME
from .record import Record


def main() -> None:
    name, out = sys.argv[1:]
    module = importlib.import_module(f"gpu.workloads.{BY_NAME[name].module}")
    record = Record()
    with record.timed("all"):
        getattr(module, name.replace("-", "_"))(record)
    Path(out).write_text(json.dumps(asdict(record), indent=1))


if __name__ == "__main__":  # spawned children import this file, too
    main()
