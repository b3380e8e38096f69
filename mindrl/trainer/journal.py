"""What a run leaves behind and shows while it goes on."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from mindrl.observability.console import StepConsole
from mindrl.observability.metrics import Metrics
from mindrl.observability.samples import Sample, SampleLog, render
from mindrl.observability.summary import write_json_atomically
from mindrl.observability.timeline import TimelineMoment
from mindrl.observability.trackers import Trackers

logger = logging.getLogger(__name__)

_SHOWN_SAMPLES = 1
"""Responses printed after each evaluation; all of them are in the files."""


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """Where the parts of a run's output lie."""

    root: Path

    @property
    def logs(self) -> Path:
        """Log files, one per process."""
        return self.root / "logs"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard event files."""
        return self.root / "tensorboard"

    @property
    def metrics(self) -> Path:
        """All metrics, one JSON line per step."""
        return self.root / "metrics.jsonl"

    @property
    def samples(self) -> Path:
        """Sampled responses, one JSON line each."""
        return self.root / "samples.jsonl"

    @property
    def evaluations(self) -> Path:
        """Greedy responses to the held-out prompts, one JSON line each."""
        return self.root / "evaluations.jsonl"

    @property
    def summary(self) -> Path:
        """The outcome of the run."""
        return self.root / "summary.json"


@dataclass
class Outcome:
    """What is known of a run so far; it becomes the summary, however the run ends."""

    model: Path
    started: float = field(default_factory=time.perf_counter)
    status: str = "failed"
    steps: int = 0
    response_tokens: float = 0.0
    step_seconds: float = 0.0
    accuracy_before: float | None = None
    accuracy_after: float | None = None
    logprob_gap_max_mean: float = 0.0
    model_saved: bool = False


class MemoryLog(Protocol):
    """Keeps what the devices held."""

    def note(self, step: int, workers: Sequence[Sequence[TimelineMoment]]) -> str | None:
        """Write a step; returns what a person should know, or None."""


class Journal:
    """Writes metrics, samples and evaluations, and keeps the outcome."""

    def __init__(
        self,
        folder: RunFolder,
        outcome: Outcome,
        console: StepConsole,
        trackers: Trackers,
    ) -> None:
        """Open the sample files in the run folder."""
        self.folder = folder
        self.outcome = outcome
        self.console = console
        self.trackers = trackers
        self.memory_log: MemoryLog | None = None
        self.samples = SampleLog(folder.samples)
        self.evaluations = SampleLog(folder.evaluations)

    def step(self, step: int, metrics: Metrics, samples: Sequence[Sample]) -> None:
        """Record a finished step."""
        outcome = self.outcome
        outcome.steps = step
        outcome.response_tokens += metrics["rollout/response_tokens"]
        outcome.step_seconds += metrics["seconds/step"]
        gap = metrics["logprob_gap/mean"]
        # Written so that a gap of NaN stays: max() would drop it.
        if not gap <= outcome.logprob_gap_max_mean:
            outcome.logprob_gap_max_mean = gap
        self.trackers.log(step, metrics)
        self.samples.write(step, samples)
        self.console.step(step, metrics)

    def memory(self, step: int, workers: Sequence[Sequence[TimelineMoment]]) -> None:
        """Record what the devices held in a step, by rank."""
        assert self.memory_log is not None, "there is one before the first step"
        finding = self.memory_log.note(step, workers)
        if finding is not None:
            logger.warning("%s", finding)
            self.console.note(finding)

    def evaluation(self, step: int, accuracy: float, samples: Sequence[Sample]) -> None:
        """Record an evaluation; step 0 is the one before training."""
        if step == 0:
            self.outcome.accuracy_before = accuracy
        else:
            self.outcome.accuracy_after = accuracy
        self.trackers.log(step, {"evaluation/accuracy": accuracy})
        self.evaluations.write(step, samples)
        self.console.evaluation(step, accuracy)
        for sample in samples[:_SHOWN_SAMPLES]:
            self.console.show(render(sample))

    def close(self) -> dict[str, object]:
        """Close all files and write the summary; returns it."""
        self.samples.close()
        self.evaluations.close()
        self.trackers.close()
        outcome, folder = self.outcome, self.folder
        rate = outcome.response_tokens / outcome.step_seconds if outcome.step_seconds else 0.0
        summary: dict[str, object] = {
            "status": outcome.status,
            "accuracy_before": outcome.accuracy_before,
            "accuracy_after": outcome.accuracy_after,
            "logprob_gap_max_mean": outcome.logprob_gap_max_mean,
            "steps": outcome.steps,
            "seconds": time.perf_counter() - outcome.started,
            "response_tokens_per_second": rate,
            "run_dir": str(folder.root),
            "logs": str(folder.logs),
            "tensorboard": str(folder.tensorboard),
            "metrics": str(folder.metrics),
            "samples": str(folder.samples),
            "model": str(outcome.model) if outcome.model_saved else None,
        }
        write_json_atomically(folder.summary, summary)
        return summary
