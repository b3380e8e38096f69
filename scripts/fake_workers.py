"""Workers without models for scripts/bench_driver.py: answers of the right shapes.

Imported by real Ray actors in place of `mindrl.launch.worker`. They are forked from a process that
has imported this module, and no Ray.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import torch

from mindrl.batch.experience import PolicyUpdate, WeightedSequences
from mindrl.batch.rollouts import Responses
from mindrl.batch.sequences import Logprobs, Sequences
from mindrl.observability.progress import tick
from mindrl.platform.host_memory import process_memory
from mindrl.rollout.engine import Sampling

if TYPE_CHECKING:
    from mindrl.platform.device import Platform
    from mindrl.preflight.run_shardings import RunPlan

LOGPROB = -1.0
"""Nats of each token, by the engine and by the trainer."""


def build_worker(plan: "RunPlan", platform: "Platform") -> "FakeWorker":
    """Return a worker that has nothing to build."""
    del plan, platform
    return FakeWorker()


class FakeWorker:
    """Answers the calls of a run that neither saves nor exports."""

    def generate_sequences(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        images: Sequence[object] = (),
    ) -> Responses:
        """Draw a response to each prompt: digits of any number up to the limit, then a stop."""
        del images
        answers = []
        for prompt, seed in zip(prompts, seeds, strict=True):
            drawn = Random(seed)
            count = drawn.randrange(1, sampling.section.max_tokens)
            answers.append([*drawn.choices(prompt, k=count - 1), sampling.stop_token_ids[0]])
            tick()
        return Responses.of(
            answers,
            [[LOGPROB] * len(answer) for answer in answers],
            [True] * len(answers),
        )

    def compute_log_prob(self, sequences: Sequences) -> Logprobs:
        """Return the log-probs that the engine has given."""
        return Logprobs(logprobs_BT=_given(sequences))

    def update(self, minibatch: WeightedSequences) -> PolicyUpdate:
        """Return the metrics of an optimizer step, and log-probs as they were."""
        metrics = {"skipped": 0.0, "policy_loss": 0.0, "grad_norm": 1.0, "entropy": 1.0}
        return PolicyUpdate(metrics=metrics, logprobs_BT=_given(minibatch))

    def flush_metrics(self) -> dict[str, float]:
        """Return as many numbers as a worker with a model does, most of them constant."""
        memory = process_memory()
        return {
            "seconds/generate": 1.0,
            "seconds/swap_reshard": 1.0,
            "bytes/reshard_received": 1e9,
            "bytes/to_host": 1e9,
            "memory/device_peak_bytes": 1e9,
            "memory/host_arena_bytes": 1e9,
            "memory/rss_bytes": float(memory.rss_bytes),
            "memory/peak_rss_bytes": float(memory.peak_rss_bytes),
            "throughput/engine_steps": 1.0,
        }

    def export(self, folder: str, record: Mapping[str, Any]) -> None:
        """Leave a folder as the sign of an export."""
        del record
        Path(folder).mkdir(parents=True, exist_ok=True)


def _given(sequences: Sequences) -> torch.Tensor:
    return torch.where(sequences.response_mask_BT, LOGPROB, 0.0)
