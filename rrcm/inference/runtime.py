"""What computes a function: the runtime, its version, and the instructions that it may use.

They decide how sums are rounded, and in 8 bits, where they saturate. Votes of different ones are
not of one function, and are not merged.
"""

import platform

import torch
from llvmlite import binding

# Instructions for which runtimes have kernels of their own.
X86 = "avx avx2 fma avxvnni avxvnniint8 avx512f avx512bw avx512vnni avx512bf16 avx512fp16"
ARM = "neon dotprod i8mm bf16 fullfp16 sve sve2"
KERNELS = (*X86.split(), "amx-int8", "amx-bf16", "amx-fp16", *ARM.split())


def of_torch(device: torch.device) -> str:
    """The version of PyTorch and its own kernels, with the processor or GPU that they run on."""
    on_cpu = f" {torch.backends.cpu.get_cpu_capability()}" if device.type == "cpu" else ""
    return named(f"torch-{device.type} {torch.__version__}{on_cpu}", device)


def named(runtime: str, device: torch.device) -> str:
    """The ``runtime``, a name and a version, with the processor or GPU that it runs on."""
    if device.type == "cuda":
        return f"{runtime}, {torch.cuda.get_device_name(device)} by CUDA {torch.version.cuda}"
    if device.type != "cpu":
        return f"{runtime}, {device.type}"
    has = binding.get_host_cpu_features()
    return f"{runtime}, {'+'.join([platform.machine(), *(one for one in KERNELS if has.get(one))])}"
