# SPDX-License-Identifier: Apache-2.0
"""What a program sees through nvidia-ml-py, as one JSON object.

With `compute` it first makes a CUDA context and allocates, and says what CUDA says; with `ways` it
says what leads to the other devices, with `every` what every question about a device answers, with
`blind` it leaves NVML out, with `wait` it stays until a line comes. Run it under `kvgpu run`, or
natively.
"""

from __future__ import annotations

import ctypes
import inspect
import json
import os
import sys
from collections.abc import Callable
from typing import Any

ALLOCATED_BYTES = 100 << 20


def ask(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what the function answers, or the number of its error."""
    import pynvml

    try:
        answer = function(*arguments)
    except pynvml.NVMLError as error:
        return {"error": error.value}
    if hasattr(answer, "_fields_"):
        return {name: getattr(answer, name) for name, *_ in answer._fields_}
    return answer


def cuda() -> dict[str, Any]:
    """Allocate, and return what CUDA says of device 0."""
    driver = ctypes.CDLL("libcuda.so.1")
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    free, total, device_total = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_size_t()
    uuid, bus_id = (ctypes.c_ubyte * 16)(), ctypes.create_string_buffer(32)
    for result in (
        driver.cuInit(0),
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        driver.cuCtxSetCurrent(context),
        driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(ALLOCATED_BYTES)),
        driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)),
        driver.cuDeviceTotalMem_v2(ctypes.byref(device_total), 0),
        driver.cuDeviceGetUuid_v2(uuid, 0),
        driver.cuDeviceGetPCIBusId(bus_id, 32, 0),
    ):
        assert result == 0, result
    return {
        "free": free.value,
        "total": total.value,
        "device_total": device_total.value,
        "uuid": bytes(uuid).hex(),
        "pci_bus_id": bus_id.value.decode(),
    }


def nvml() -> dict[str, Any]:
    """Return what NVML says of device 0."""
    import pynvml

    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    processes = ask(pynvml.nvmlDeviceGetComputeRunningProcesses, device)
    return {
        "n_devices": pynvml.nvmlDeviceGetCount(),
        "name": pynvml.nvmlDeviceGetName(device),
        "uuid": pynvml.nvmlDeviceGetUUID(device),
        "pci_bus_id": pynvml.nvmlDeviceGetPciInfo(device).busId,
        "memory": ask(pynvml.nvmlDeviceGetMemoryInfo, device),
        "capability": pynvml.nvmlDeviceGetCudaComputeCapability(device),
        "driver": ask(pynvml.nvmlSystemGetDriverVersion),
        "cuda": pynvml.nvmlSystemGetCudaDriverVersion(),
        "temperature": ask(pynvml.nvmlDeviceGetTemperature, device, 0),
        "power": ask(pynvml.nvmlDeviceGetPowerUsage, device),
        "power_by_scope": [average_power(device, scope) for scope in range(3)],
        "sm_clock": ask(pynvml.nvmlDeviceGetClockInfo, device, pynvml.NVML_CLOCK_SM),
        "reasons": ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons, device),
        "load": ask(pynvml.nvmlDeviceGetUtilizationRates, device),
        "processes": [[process.pid, process.usedGpuMemory] for process in processes],
        "serial": ask(pynvml.nvmlDeviceGetSerial, device),
        "set_power": ask(pynvml.nvmlDeviceSetPowerManagementLimit, device, 1000),
    }


def average_power(device: Any, scope: int) -> Any:
    """Return what NVML says of a part of the card."""
    import pynvml

    field = (pynvml.NVML_FI_DEV_POWER_AVERAGE, scope)
    (value,) = pynvml.nvmlDeviceGetFieldValues(device, [field])
    return value.value.uiVal if value.nvmlReturn == 0 else {"error": value.nvmlReturn}


def link(device: Any, number: int) -> dict[str, Any]:
    """Return what NVML says of an NVLink of `device`."""
    import pynvml

    fields = [pynvml.NVML_FI_DEV_NVLINK_GET_STATE, pynvml.NVML_FI_DEV_NVLINK_GET_SPEED]
    asked = ask(pynvml.nvmlDeviceGetFieldValues, device, [(field, number) for field in fields])
    state, speed = (
        value.value.uiVal if value.nvmlReturn == 0 else {"error": value.nvmlReturn}
        for value in asked
    )
    remote = ask(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, device, number)
    capability = pynvml.NVML_NVLINK_CAP_P2P_SUPPORTED
    return {
        "active": ask(pynvml.nvmlDeviceGetNvLinkState, device, number),
        "state": state,
        "mbps": speed,
        "version": ask(pynvml.nvmlDeviceGetNvLinkVersion, device, number),
        "p2p": ask(pynvml.nvmlDeviceGetNvLinkCapability, device, number, capability),
        "kind": ask(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, device, number),
        "remote": remote if "error" in remote else remote["busId"],
    }


def ways() -> dict[str, Any]:
    """Return what NVML says of the ways from device 0 to device 1."""
    import pynvml

    pynvml.nvmlInit()
    device, *others = (
        pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())
    )
    counts = pynvml.nvmlDeviceGetFieldValues(
        device,
        [
            pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT,
            pynvml.NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT,
        ],
    )
    said: dict[str, Any] = {
        "links": [link(device, number) for number in range(pynvml.NVML_NVLINK_MAX_LINKS)],
        "beyond": link(device, pynvml.NVML_NVLINK_MAX_LINKS),
        "processors": list(ask(pynvml.nvmlDeviceGetCpuAffinity, device, 16)),
        "nodes": list(ask(pynvml.nvmlDeviceGetMemoryAffinity, device, 1, 0)),
        "n_links": [
            count.value.uiVal if count.nvmlReturn == 0 else {"error": count.nvmlReturn}
            for count in counts
        ],
    }
    for other in others[:1]:
        statuses = (ask(pynvml.nvmlDeviceGetP2PStatus, device, other, i) for i in range(5))
        said["p2p"] = list(statuses)
        said["ancestors"] = [
            ask(pynvml.nvmlDeviceGetTopologyCommonAncestor, device, one) for one in (other, device)
        ]
        said["other"] = pynvml.nvmlDeviceGetPciInfo(other).busId
        said["smi_way"] = smi_way(pynvml.nvmlDeviceGetPciInfo(device).busId, said["other"])
    return said


def smi_way(bus_id: str, other_bus_id: str) -> int:
    """Return the way between two devices as nvidia-smi asks for it: by entry 23 of its table."""
    library = ctypes.CDLL("libnvidia-ml.so.1")
    table = ctypes.POINTER(ctypes.c_void_p)()
    table_id = bytes.fromhex("c4fe3e6cc98f6c4ea327ee696e12f7c4")
    if result := library.nvmlInternalGetExportTable(ctypes.byref(table), table_id):
        raise SystemExit(f"no table: {result}")
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p)
    way = ctypes.c_uint(~0)
    if result := kind(table[23])(bus_id.encode(), other_bus_id.encode(), ctypes.byref(way)):
        raise SystemExit(f"no way between two devices: {result}")
    return way.value


def every() -> dict[str, Any]:
    """Ask everything that takes a device alone; return the errors of what has no answer."""
    import pynvml

    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    errors = {}
    for name, function in inspect.getmembers(pynvml, inspect.isfunction):
        parameters = inspect.signature(function).parameters.values()
        needed = [each.name for each in parameters if each.default is each.empty]
        if not name.startswith(("nvmlDeviceGet", "nvmlDeviceIs")) or len(needed) != 1:
            continue
        if needed[0] not in ("handle", "device"):
            continue
        answer = ask(function, device)
        errors[name] = answer.get("error", 0) if isinstance(answer, dict) else 0
    return errors


def main() -> None:
    said: dict[str, Any] = {"pid": os.getpid()}
    if "compute" in sys.argv:
        said["cuda"] = cuda()
    if "ways" in sys.argv:
        said["ways"] = ways()
    if "every" in sys.argv:
        said["every"] = every()
    if "blind" not in sys.argv:
        said["nvml"] = nvml()
    print(json.dumps(said), flush=True)
    if "wait" in sys.argv:
        sys.stdin.readline()


if __name__ == "__main__":
    main()
