"""Bounds of bfloat16 products, which the kernels of CPUs add up in different orders."""

import torch


def bound(value: float, without_avx512: float) -> float:
    """Return a bound for this CPU; without AVX-512 products of other shapes differ more."""
    return value if "AVX512" in torch.backends.cpu.get_cpu_capability() else without_avx512
