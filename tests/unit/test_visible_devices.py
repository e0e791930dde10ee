# SPDX-License-Identifier: Apache-2.0
"""CUDA_VISIBLE_DEVICES names devices as it does natively."""

import pytest

from kvgpu.host.control_frames import Open
from kvgpu.host.visible_devices import TwiceError, visible_devices

UUIDS = ["0d448ec96de05d99540401e70aaf26cc", "c717437ef0000000000000000000abcd", "c7aa" + "0" * 28]


@pytest.mark.parametrize(
    ("setting", "devices"),
    [
        (None, (0, 1, 2)),
        (b"", ()),
        (b"1", (1,)),
        (b"2,0", (2, 0)),
        (b" 2 , 0", (2, 0)),
        (b"0,3,1", (0,)),  # the first that is none ends the list
        (b"-1", ()),
        (b"0,-1,1", (0,)),
        (b"GPU-0d448ec9-6de0-5d99-5404-01e70aaf26cc", (0,)),
        (b"GPU-c717,0", (1, 0)),
        (b"GPU-c7", ()),  # two have it
        (b"GPU-", ()),
        (b"MIG-1", ()),
        (b"none", ()),
        ("²".encode(), ()),
        (b"\xff", ()),
    ],
)
def test_setting_names_devices(setting: bytes | None, devices: tuple[int, ...]) -> None:
    assert visible_devices(setting, UUIDS) == devices


def test_device_named_twice_is_an_error() -> None:
    with pytest.raises(TwiceError, match="GPU-0d44"):
        visible_devices(b"0,1,GPU-0d44", UUIDS)


@pytest.mark.parametrize("visible", [None, b"", b"1,0"])
def test_setting_travels_with_the_open_frame(visible: bytes | None) -> None:
    request = Open(0, 3, 0, 1 << 45, 1, 2, b"name".ljust(16, b"\0"), visible)
    assert Open.unpack(request.pack()) == request
