# SPDX-License-Identifier: Apache-2.0
"""Process life on a real GPU: kvgpud killed under a checked loop, workers killed, forks, waits.

python tests/gpu/life.py [SECONDS]: the checked loop takes so long (60).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from framework.life import checked_loop
from framework.loopback import LOOPBACK, ROOT, Loopback, loopback

PROGRAMS = ROOT / "tests/loopback/life_programs.py"
# name -> the last line it prints
ENDING = {
    "fork_child": "done",
    "fork_exec": "done",
    "threads_64": "done",
    "threads_mixed": "done",
    "exit_with_work": "leaving",
    "close_library": "done",
}
CALLS = {
    ("exit_calls",): ["done"],
    ("static_calls",): ["set before main: 5", "done"],
    ("static_calls", "exit"): ["set before main: 5", "done"],
}
MAX_WAITING_PERCENT = 3


def killed_worker(host: Loopback) -> None:
    process = host.start(sys.executable, PROGRAMS, "until_error")
    assert process.stdout
    assert process.stdout.readline() == "ready\n", host.logs()
    (worker,) = host.worker_pids()
    time.sleep(0.3)
    os.kill(worker, signal.SIGKILL)
    output, errors = process.communicate(timeout=20)
    assert output.split() == ["error", "999", "999", "True"], output + errors
    print("ok      killed worker: CUDA_ERROR_UNKNOWN from every call")


def main() -> None:
    n_seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60
    # No jail: the machine may be a container that cannot make one.
    with loopback(driver="nvidia", jail=False) as host:
        for name, last in ENDING.items():
            output = host.check(sys.executable, PROGRAMS, name)
            assert output.splitlines()[-1] == last, output
            print(f"ok      {name}")
        for (name, *arguments), lines in CALLS.items():
            assert host.check(LOOPBACK / name, *arguments).splitlines() == lines
            print(f"ok      {' '.join([name, *arguments])}")
        assert host.run(sys.executable, PROGRAMS, "exit_in_callback").returncode == 7
        print("ok      exit_in_callback")
        killed_worker(host)
        stream, event = map(float, host.check(sys.executable, PROGRAMS, "waiting").split())
        print(f"figure: {stream} % of a processor waiting 1 s for a stream, {event} % for an event")
        assert max(stream, event) <= MAX_WAITING_PERCENT
        print(checked_loop(host, n_seconds))


if __name__ == "__main__":
    main()
