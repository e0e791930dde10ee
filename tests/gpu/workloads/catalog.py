# SPDX-License-Identifier: Apache-2.0
"""The workloads: which there are, where their bodies are, what they need. Imports none of them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Workload:
    """One row of the table of docs/compatibility.md, run in a process of its own."""

    module: str
    name: str  # of the function in `module`, with - for _
    title: str
    n_gpus: int = 1
    environment: dict[str, str] = field(default_factory=dict)


NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
NO_PREALLOCATION = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def allocator(setting: str) -> dict[str, str]:
    return {"PYTORCH_CUDA_ALLOC_CONF": setting}


T, F, P, S = "torch_training", "torch_features", "python_libraries", "several_gpus"
WORKLOADS = (
    Workload(T, "resnet50", "ResNet-50: bf16 training (SGD, Adam; fused, foreach), inference"),
    Workload(T, "gpt2", "transformer of GPT-2's size: bf16 training (SGD, Adam; fused, foreach)"),
    Workload(T, "generate", "transformers: generate, with a dynamic and a static, compiled cache"),
    Workload(F, "sdpa", "SDPA with each back end, forward and backward"),
    Workload(F, "compile", "torch.compile (Triton), default and reduce-overhead"),
    Workload(F, "torch-graphs", "torch.cuda.graphs: capture, replay, graphed callables"),
    Workload(
        F, "expandable-segments", "expandable_segments", 1, allocator("expandable_segments:True")
    ),
    Workload(
        F, "malloc-async", "back end cudaMallocAsync", 1, allocator("backend:cudaMallocAsync")
    ),
    Workload(F, "dataloader", "pinned DataLoader with 4 forked workers, after CUDA's start"),
    Workload(F, "torch-math", "PyTorch: FFT, linalg, sparse, random, fp8 matmul"),
    Workload(F, "profiler", "torch.profiler: CPU activities; no crash with CUDA's"),
    Workload(F, "torch-ipc", "CUDA IPC: a tensor that another process reads and changes"),
    Workload(P, "cupy", "CuPy: kernels, cuBLAS, cuFFT, cuRAND, streams, pinned, managed memory"),
    Workload(P, "jax", "JAX: jit, grad, vmap, random, 100 steps", 1, NO_PREALLOCATION),
    Workload(P, "numba", "numba: kernel, shared memory, atomics, streams"),
    Workload(P, "triton", "Triton: a softmax and a matmul of its own"),
    Workload(P, "cuda-python", "cuda-python: cuda.core, NVRTC, nvJitLink"),
    Workload(S, "nccl-2", "NCCL: all collectives, 2 GPUs", 2, NO_MULTICAST),
    Workload(S, "nccl-4", "NCCL: all collectives, 4 GPUs", 4, NO_MULTICAST),
    Workload(S, "ddp-2", "DDP over NCCL, 2 GPUs", 2, NO_MULTICAST),
    Workload(S, "ddp-4", "DDP over NCCL, 4 GPUs", 4, NO_MULTICAST),
    Workload(S, "jax-pmap", "JAX: pmap, 2 GPUs", 2, NO_PREALLOCATION | NO_MULTICAST),
    Workload(S, "peers", "copies between 2 GPUs, peer access", 2),
)

# Run inside an emulated VM, where a processor is some twenty times slower (vm_jobs.py).
VM_ONLY = (
    Workload(T, "linear-step", "four bf16 training steps of linear layers"),
    Workload(T, "resnet50-step", "two bf16 training steps of ResNet-50"),
)
BY_NAME = {workload.name: workload for workload in (*WORKLOADS, *VM_ONLY)}
IN_VM = ("nccl-2", "resnet50-step", "dataloader", "linear-step", "cuda-python")
