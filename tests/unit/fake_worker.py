#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A kvgpu-worker without a GPU: says READY on descriptor 3 and does what FAKE_WORKER tells it.

FAKE_WORKER: "" (good), silent (no READY), refuse (FAILED), talks (FAILED three times, and goes on),
stubborn (ignores end of file), crash (dies after READY), extent (takes one), extents (takes two,
gives one back), kick (ends with 0 after one kick),
silent-pool (with --prestart no sign of life), other-major (PRESTARTED of protocol 7),
hmm (a device that reaches all memory), nodriver (none until $FAKE_DRIVER exists), late, late-hmm
(no answer until $FAKE_DRIVER exists).
"""

import json
import os
import select
import socket
import struct
import sys
import time

MAGIC = 0x4347564B
END = struct.pack("<H", 21)


def frame(frame_type: int, payload: bytes = b"", number: int = 0) -> bytes:
    return struct.pack("<IHHII", MAGIC, frame_type, 0, len(payload), number) + payload


def resume(control: socket.socket) -> None:
    """Wait for the next kvgpud; its connection takes the place of the earlier one's."""
    with socket.socket(fileno=os.dup(6)) as listener:
        connection, _ = listener.accept()
    session = int(sys.argv[sys.argv.index("--session") + 1])
    socket.send_fds(connection, [frame(22, struct.pack("<HHI", 0, 1, 0), session)], [4, 5])
    os.dup2(connection.fileno(), control.fileno())
    connection.close()


def main() -> int:
    if "--inventory" in sys.argv:
        if os.environ.get("FAKE_WORKER") == "nodriver":
            if not os.path.exists(os.environ["FAKE_DRIVER"]):
                print("the driver answers CUDA_ERROR_NO_DEVICE (100)", file=sys.stderr)
                return 1
        mode = os.environ.get("FAKE_WORKER", "")
        while mode.startswith("late") and not os.path.exists(os.environ["FAKE_DRIVER"]):
            time.sleep(0.01)
        device = {"name": "fake", "total_bytes": 1 << 30, "pci_bus_id": "0000:ff:00.0"}
        device["pageable_memory_access"] = mode.endswith("hmm")
        print(json.dumps({"driver_version": 13000, "devices": [device]}))
        return 0
    mode = os.environ.get("FAKE_WORKER", "")
    print("fake worker:", *sys.argv[1:], file=sys.stderr, flush=True)
    control = socket.socket(fileno=3)
    if "--prestart" in sys.argv and mode == "silent-pool":
        time.sleep(60)
    if "--prestart" in sys.argv and mode == "other-major":
        control.send(frame(24, struct.pack("<HHI", 7, 0, 1)))
        control.recv(4096)
        return 0
    assert os.fstat(4).st_size == int(sys.argv[sys.argv.index("--region-bytes") + 1])
    os.pwrite(4, b"used", int(sys.argv[sys.argv.index("--block-offset") + 1]))
    if mode == "silent":
        time.sleep(60)
    if mode == "refuse":
        control.send(frame(20, struct.pack("<i", 803) + b"no such driver"))
        return 1
    if mode == "talks":
        for _ in range(3):
            control.send(frame(20, struct.pack("<i", 803) + b"bad\nkvgpud: all is well\x1b[31m"))
        time.sleep(60)
    control.send(frame(16, struct.pack("<I", 1)))
    if mode == "crash":
        time.sleep(0.05)
        os.abort()
    if mode in ("extent", "extents"):
        for number in range(1, 3 if mode == "extents" else 2):
            control.send(frame(17, struct.pack("<Q", 4 << 20), number))
            answer = control.recv(4096)
            offset, size_bytes = struct.unpack_from("<QQ", answer, 16)
            assert size_bytes == 4 << 20
            os.pwrite(4, b"used", offset)
    if mode == "extents":
        control.send(frame(19, struct.pack("<Q", offset)))
        os.pwrite(4, b"done", int(sys.argv[sys.argv.index("--block-offset") + 1]))
    poll = select.poll()
    poll.register(3, select.POLLIN)
    if mode == "kick":
        poll.register(5, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == 5:
                return 0
            message = control.recv(4096)
            if message[4:6] == END or (not message and "--away-s" not in sys.argv):
                if mode == "stubborn":
                    time.sleep(60)
                return 0
            if not message:
                resume(control)


if __name__ == "__main__":
    sys.exit(main())
