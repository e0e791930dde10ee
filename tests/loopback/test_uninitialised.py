# SPDX-License-Identifier: Apache-2.0
"""Where there is no CUDA every entry point says so, and none of them waits for our locks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from framework.loopback import Loopback

from kvgpu.protocol.generator.model import Model

CALLER = Path(__file__).with_name("uninitialised.py")


def test_every_entry_point_answers_before_init_and_in_a_forked_child(
    host: Loopback, model: Model
) -> None:
    names = [row.name for row in model.rows if not row.before_init]
    names += [
        name for name in model.exported if (twin := model.twin_of(name)) and not twin.before_init
    ]
    assert len(names) > 350
    done = subprocess.run(
        host.command(sys.executable, CALLER),
        env=host.environment,
        input=json.dumps(names),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.split() == ["done"], f"{done.stdout}\n{done.stderr[-2000:]}\n{host.logs()}"
