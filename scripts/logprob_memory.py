"""Measure the memory of log-probs of many tokens over a large vocabulary in addition to the inputs.

    python scripts/logprob_memory.py --tokens 4096 --vocabulary 151936 [--chunks 256 512 1024]

Prints JSON; scripts/bench_train.py calls it in a separate process and prints the result.
Each method has two peaks of extra memory:

resident    as counted by the operating system (VmHWM), with scratch memory of the libraries. The C
            library must return freed blocks at once: MALLOC_MMAP_THRESHOLD_=65536 is set before the
            process starts.
allocated   the running sum of torch's allocations from its profiler

Shapes: N tokens, H hidden size, V vocabulary.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torch.profiler import ProfilerActivity, profile

from mindrl.training.logprobs import Vocabulary, chunked_logprobs

HIDDEN = 64
"""Small, so that logits dominate the memory."""

Scores = Callable[[], Tensor]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Inputs; the weight's gradient is added to an existing buffer."""

    hidden_NH: Tensor
    weight_VH: Tensor
    targets_N: Tensor

    @classmethod
    def drawn(cls, tokens: int, vocabulary: int, dtype: torch.dtype) -> "Inputs":
        """Sample inputs whose logits have a standard deviation of 3."""
        generator = torch.Generator().manual_seed(1)
        weight_VH = torch.randn(vocabulary, HIDDEN, generator=generator) * 3 / HIDDEN**0.5
        weight_VH = weight_VH.to(dtype).requires_grad_()
        weight_VH.main_grad = torch.zeros(vocabulary, HIDDEN)  # type: ignore[attr-defined]
        return cls(
            hidden_NH=torch.randn(tokens, HIDDEN, generator=generator).to(dtype).requires_grad_(),
            weight_VH=weight_VH,
            targets_N=torch.randint(0, vocabulary, (tokens,), generator=generator),
        )

    def taken_gradients(self) -> list[Tensor]:
        """Return the gradients of hidden states and weight, and reset them."""
        buffer_VH: Tensor = self.weight_VH.main_grad  # type: ignore[attr-defined]
        grad_VH = buffer_VH.clone() if self.weight_VH.grad is None else self.weight_VH.grad.float()
        assert self.hidden_NH.grad is not None
        grad_NH = self.hidden_NH.grad.float()
        buffer_VH.zero_()
        self.hidden_NH.grad = self.weight_VH.grad = None
        return [grad_NH, grad_VH]


def whole(inputs: Inputs) -> Tensor:
    """Return log-probs computed from all logits at once."""
    logits_NV = inputs.hidden_NH @ inputs.weight_VH.T
    all_NV = torch.log_softmax(logits_NV.float(), dim=-1)
    return all_NV.gather(1, inputs.targets_N[:, None])[:, 0]


def chunked(inputs: Inputs, chunk_tokens: int) -> tuple[Tensor, Tensor]:
    """Return log-probs and entropies, computed by chunks."""
    group = dist.group.WORLD
    assert group is not None
    vocabulary = Vocabulary(
        size=len(inputs.weight_VH),
        first_token=0,
        group=group,
        temperature=1.0,
        chunk_tokens=chunk_tokens,
    )
    return chunked_logprobs(inputs.hidden_NH, inputs.weight_VH, inputs.targets_N, vocabulary)


def measure(scores: Scores, *, backward: bool) -> tuple[Tensor, dict[str, float]]:
    """Return the log-probs, and seconds and both peaks of extra bytes."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        before = reset_peak()
        start = time.perf_counter()
        with torch.set_grad_enabled(backward):
            logprobs_N = scores()
        if backward:
            logprobs_N.sum().backward()
        seconds = time.perf_counter() - start
        resident = status("VmHWM") - before
    figures = {"seconds": seconds, "resident": resident, "allocated": allocated(profiler)}
    return logprobs_N.detach(), figures


def allocated(profiler: profile) -> int:
    """Return the peak of the running sum of allocations, in bytes."""
    events = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    now = peak = 0
    for _, change in sorted(changes, key=lambda change: change[0]):
        now += change
        peak = max(peak, now)
    return peak


def measure_all(arguments: argparse.Namespace, dtype: torch.dtype) -> list[dict[str, object]]:
    """Measure every method without and with gradients; compare it with the whole computation."""
    inputs = Inputs.drawn(arguments.tokens, arguments.vocabulary, dtype)
    ways: list[tuple[int, Scores]] = [(arguments.tokens, lambda: whole(inputs))]
    ways += [(chunk, lambda chunk=chunk: chunked(inputs, chunk)[0]) for chunk in arguments.chunks]
    results: list[dict[str, object]] = []
    expected: list[Tensor] = []
    for chunk, scores in ways:
        for backward in (False, True):
            logprobs_N, figures = measure(scores, backward=backward)
            found = [logprobs_N] + (inputs.taken_gradients() if backward else [])
            expected = expected if results[1:] else found
            differences = zip(found, expected, strict=False)
            results.append(
                {
                    "dtype": str(dtype).removeprefix("torch."),
                    "chunk": chunk,
                    "whole": chunk == arguments.tokens,
                    "backward": backward,
                    "chunk_bytes": 4 * chunk * arguments.vocabulary,
                    **figures,
                    "difference": [float((a - b).norm() / b.norm()) for a, b in differences],
                }
            )
    return results


def reset_peak() -> int:
    """Reset this process's peak of resident memory; return the resident bytes."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return status("VmRSS")


def status(field: str) -> int:
    """Return a field of this process's status, in bytes."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in text.splitlines() if line.startswith(field))
    return int(line.split()[1]) << 10


def main() -> int:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=4096, help="number of tokens")
    parser.add_argument("--vocabulary", type=int, default=151_936, help="size of the vocabulary")
    parser.add_argument("--chunks", type=int, nargs="+", default=[256, 512, 1024], help="rows")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    warm = argparse.Namespace(tokens=64, vocabulary=4096, chunks=[32])
    results: list[dict[str, object]] = []
    for dtype in (torch.float32, torch.bfloat16):
        measure_all(warm, dtype)
        results += measure_all(arguments, dtype)
    print(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
