"""Output of a run: files, and what is shown during the run."""

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from mindrl.algorithms.success_rates import Rate
from mindrl.checkpoint.commits import CHECKPOINTS
from mindrl.config.layout_keys import Role
from mindrl.errors import OutputError
from mindrl.observability.console import StepConsole
from mindrl.observability.metrics import Metrics
from mindrl.observability.output_files import output_errors, write_json_atomically
from mindrl.observability.run_folder import best_folder
from mindrl.observability.samples import Sample, SampleLog, render
from mindrl.observability.timeline import MeasuredSnapshot
from mindrl.observability.trackers import Tracker
from mindrl.report.advice import Adviser
from mindrl.report.live_page import LivePage
from mindrl.report.run_record import step_lines
from mindrl.rewards.scores import FailureKind, Failures
from mindrl.tracking.process import ProcessTracker
from mindrl.trainer.inputs import Prints
from mindrl.trainer.step_checks import MODELS
from mindrl.trainer.step_notes import step_notes

logger = logging.getLogger(__name__)

T = TypeVar("T")
Moments = Sequence[Sequence[MeasuredSnapshot]]
"""The workers' recorded moments in a step, by rank."""

_LEARNED_TOKENS = ("rollout/response_tokens", "sft/target_tokens")
"""Metrics of trained tokens: generated, or from demonstrations."""
_RESERVE_BYTES = 64 << 10
"""Size of the reserve; a summary needs less."""
_LARGEST_LOSS = 700.0
"""Bound in nats; the perplexity of larger losses overflows 64 bits."""
_OF_THIS_START = frozenset({"exports", "provenance", "report", "started", "status", "restarts"})
"""Fields of a summary that are not counts."""


class RunFolder:
    """Paths of a run's output."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.logs = root / "logs"
        """Log files, one per process."""
        self.traces = root / "trace"
        """Timelines of steps, a file each."""
        self.tensorboard = root / "tensorboard"
        """TensorBoard event files."""
        self.trackers = root / "trackers"
        """Local data of the other trackers, one folder each."""
        self.metrics = root / "metrics.jsonl"
        """All metrics, one JSON line per step."""
        self.samples = root / "samples.jsonl"
        """Sampled responses, one JSON line each."""
        self.evaluations = root / "evaluations.jsonl"
        """Greedy responses to the held-out prompts, one JSON line each."""
        self.eval_sets = root / "evaluations"
        """Answers of each set of `data_config.eval_sets`, one line each, in a file of its name."""
        self.pictures = root / "pictures"
        """Thumbnails of the pictures of samples."""
        self.rollouts = root / "rollouts"
        """All responses of the last steps, one file per step."""
        self.plan = root / "plan.json"
        """Predictions of the run's plan."""
        self.faults = root / "faults.jsonl"
        """Failed attempts at the run, one JSON line each."""
        self.checkpoints = root / CHECKPOINTS
        """Checkpoints from which the run can resume."""
        self.summary = root / "summary.json"
        """The outcome of the run."""
        self.reserve = root / ".summary.reserve"
        """Reserved disk space for the summary."""
        self.spool = root / ".spool"
        """Id of the spool of a rollout job."""


@dataclass
class RunSummary:
    """State of a run so far; written at its end, even if it fails."""

    exports: Mapping[Role, Path]
    """Export folder of each trained model; the best one by evaluation is next to the actor's."""
    provenance: Mapping[str, object] = field(default_factory=dict)
    """Versions and settings of the run, for the summary and the exported models."""
    report: Path | None = None
    """Page of the run; None without one."""
    started: float = field(default_factory=time.perf_counter)
    status: str = "failed"
    restarts: int = 0
    """Restarts of the workers since the program started."""
    steps: int = 0
    response_tokens: float = 0.0
    step_seconds: float = 0.0
    accuracy_before: float | None = None
    accuracy_after: float | None = None
    accuracy_best: float | None = None
    """Best accuracy among the evaluated exports."""
    evaluations: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    """Results of each set `before` and `after`, by name, with the ends of the intervals."""
    logprob_gap_max_mean: float | None = None
    """None without a rollout."""
    skipped_updates: int = 0
    reward_failures: dict[str, dict[FailureKind, int]] = field(default_factory=dict)
    """Number of missing scores by function and kind of failure."""
    steps_without_signal: int = 0
    shown_notes: list[str] = field(default_factory=list)
    """Notes about steps that have been shown; each is shown once."""
    skipped_checkpoints: int = 0
    model_step: int | None = None
    """Step of the newest exported model; None before the first."""
    model_best_step: int | None = None
    """Step of the exported model with the best accuracy."""

    def counts(self) -> dict[str, object]:
        """Return the counts, for resuming the run; later steps do not change them."""
        values = {**vars(self), "seconds": time.perf_counter() - self.started}
        return deepcopy({name: each for name, each in values.items() if name not in _OF_THIS_START})

    def load_counts(self, counts: Mapping[str, Any]) -> None:
        """Restore the counts of a run."""
        for name, value in counts.items():
            if name != "seconds":
                setattr(self, name, value)
        self.started -= counts["seconds"]
        # Another run folder, or another export folder, has no exports yet.
        model = self.exports["actor"]
        if not model.is_dir():
            self.model_step = None
        if not best_folder(model).is_dir():
            self.accuracy_best = self.model_best_step = None

    def record(self, folder: RunFolder) -> dict[str, object]:
        """Return the content of `summary.json` for a run that ends now."""
        model, best = self.exports["actor"], self.model_best_step
        rate = self.response_tokens / self.step_seconds if self.step_seconds else 0.0
        return {
            "status": self.status,
            "accuracy_before": self.accuracy_before,
            "accuracy_after": self.accuracy_after,
            "evaluations": self.evaluations,
            "logprob_gap_max_mean": self.logprob_gap_max_mean,
            "restarts": self.restarts,
            "steps": self.steps,
            "skipped_updates": self.skipped_updates,
            "steps_without_signal": self.steps_without_signal,
            "skipped_checkpoints": self.skipped_checkpoints,
            "reward_failures": self.reward_failures,
            "seconds": time.perf_counter() - self.started,
            "response_tokens_per_second": rate,
            "run_dir": str(folder.root),
            "logs": str(folder.logs),
            "tensorboard": str(folder.tensorboard),
            "metrics": str(folder.metrics),
            "samples": str(folder.samples),
            "report": None if self.report is None else str(self.report),
            "model": None if self.model_step is None else str(model),
            "model_step": self.model_step,
            "model_best": None if best is None else str(best_folder(model)),
            "model_best_step": best,
            "model_best_accuracy": self.accuracy_best,
            **self.provenance,
        }


class RunLog:
    """Writes metrics, samples and evaluations, and keeps the summary.

    A failure of these files does not end a run: it is reported, and the file is not written again.
    """

    def __init__(
        self,
        folder: RunFolder,
        summary: RunSummary,
        console: StepConsole,
        trackers: Sequence[Tracker],
    ) -> None:
        """Open the sample files in the run folder, and remove the summary of an earlier attempt.

        Raises:
            OutputError: They cannot be opened, or it cannot be removed.
        """
        self.folder = folder
        self.summary = summary
        self.console = console
        self.trackers = trackers
        self.note_memory: Callable[[int, Moments], str | None] | None = None
        """Records the devices' memory in a step; returns a note for the user, or None."""
        self.show_pictures: Callable[[Iterable[str]], None] = lambda names: None  # noqa: ARG005
        """Writes thumbnails of pictures, given their names."""
        self.traced: Callable[[Iterable[int]], Iterable[int]] = lambda steps: steps
        """Yields the steps, and records the timeline of some."""
        self.samples = SampleLog(folder.samples)
        self.evaluations = SampleLog(folder.evaluations)
        self.eval_sets: dict[str, SampleLog] = {}
        """Logs of evaluation sets by name, from the first evaluation on."""
        self.adviser = Adviser()
        for row in step_lines(folder.metrics):
            self.adviser.observe(row)
        self.left_out: set[object] = set()
        self.of_next_step: Metrics = {}
        """Additional metrics of the next step."""
        self.inputs: Prints = {}
        """Fingerprints of the run's files, which checkpoints record."""
        self.answers: Sequence[Sample] = ()
        with output_errors(folder.summary):
            folder.summary.unlink(missing_ok=True)
        with output_errors(folder.reserve):
            folder.reserve.write_bytes(bytes(_RESERVE_BYTES))

    def step(self, step: int, metrics: Metrics, samples: Sequence[Sample]) -> None:
        """Record a finished step."""
        metrics, self.of_next_step = metrics | self.of_next_step, {}
        summary = self.summary
        summary.steps = step
        summary.response_tokens += sum(metrics.get(name, 0.0) for name in _LEARNED_TOKENS)
        summary.step_seconds += metrics["seconds/step"]
        if (gap := metrics.get("logprob_gap/mean")) is not None:
            summary.logprob_gap_max_mean = max(summary.logprob_gap_max_mean or 0.0, gap)
        summary.skipped_updates += sum(int(metrics.get(name, 0)) for name in MODELS)
        self._track(step, metrics)
        self.keep(self.samples, lambda: self.samples.log(step, samples))
        self._show_pictures(samples)
        self.console.step(step, metrics)
        # The policy did not change, or not because of its rewards.
        if metrics.get("advantage/zero_fraction") == 1 or metrics.get("update/grad_norm") == 0:
            summary.steps_without_signal += 1
        for name, text in step_notes(metrics, summary.shown_notes):
            self.warn(f"step {step} {text}")
            summary.shown_notes.append(name)

    def memory(self, step: int, workers: Moments) -> None:
        """Record the devices' memory in a step."""
        note = self.note_memory
        assert note is not None, "it is set before the first step"
        finding = self.keep(note, lambda: note(step, workers))
        if finding is not None:
            self.warn(finding)

    def reward_failures(self, step: int, failures: Sequence[Failures]) -> None:
        """Count the scores that functions did not return; report the first of each kind."""
        for each in failures:
            counts = self.summary.reward_failures.setdefault(each.function, {})
            if each.kind not in counts:
                self.console.note(
                    f"warning: step {step}: {each.function} did not score {each.count} "
                    f"response(s): {each.kind}: {each.first.detail}; details are in driver.log, "
                    "and the summary counts all"
                )
            counts[each.kind] = counts.get(each.kind, 0) + each.count

    def evaluation(self, step: int, accuracy: Rate, samples: Sequence[Sample]) -> None:
        """Record an evaluation; step 0 is before training."""
        if step == 0:
            self.summary.accuracy_before = accuracy.value
        else:
            self.summary.accuracy_after = accuracy.value
        self._track(step, _with_ends("evaluation/accuracy", accuracy))
        self.keep(self.evaluations, lambda: self.evaluations.log(step, samples))
        self._show_pictures(samples)
        self.console.evaluation(step, accuracy.value)
        if samples:
            self.console.show(render(_telling(samples, self.answers)))
        self.answers = samples

    def evaluation_of(
        self, name: str, step: int, rates: Mapping[str, Rate], samples: Sequence[Sample]
    ) -> None:
        """Record an evaluation on a named set."""
        measured: Metrics = {}
        for what, rate in rates.items():
            measured |= _with_ends(what, rate)
        when = "after" if step else "before"
        self.summary.evaluations.setdefault(name, {})[when] = measured
        self._track(step, {f"eval/{name}/{what}": value for what, value in measured.items()})
        self.keep(f"responses to {name}", lambda: self._answers_to(name).log(step, samples))
        self._show_pictures(samples)
        shown = "  ".join(f"{what} {rate}" for what, rate in rates.items())
        self.console.measured(step, f"{name}  {shown}")

    def held_out_loss(self, step: int, name: str | None, loss: float) -> None:
        """Record the loss on a named set, None for the held-out file; step 0 is before training."""
        perplexity = math.exp(min(loss, _LARGEST_LOSS))
        self._held_out(step, name, {"loss": loss, "perplexity": perplexity})

    def held_out_preferences(
        self, step: int, name: str | None, *, loss: float, accuracy: float | None
    ) -> None:
        """Record loss and accuracy, if any, on preferences of a set, as `held_out_loss`."""
        found = {"loss": loss} if accuracy is None else {"loss": loss, "accuracy": accuracy}
        self._held_out(step, name, found)

    def _held_out(self, step: int, name: str | None, found: Metrics) -> None:
        when, label = "after" if step else "before", name or "held-out"
        self.summary.evaluations.setdefault(label, {})[when] = found
        place = "evaluation" if name is None else f"eval/{name}"
        self._track(step, {f"{place}/{what}": value for what, value in found.items()})
        shown = "  ".join(f"{what} {value:.4g}" for what, value in found.items())
        self.console.measured(step, f"{label} {shown}")

    def keep_thumbnails(self, names: Sequence[str]) -> None:
        """Write the thumbnails of pictures, given their names."""
        self.keep("thumbnails", lambda: self.show_pictures(names))

    def _show_pictures(self, samples: Sequence[Sample]) -> None:
        talks = [each.conversation for each in samples]
        given = [name for talk in talks if talk is not None for name in talk.pictures]
        self.keep_thumbnails([*(name for each in samples for name in each.pictures), *given])

    def _answers_to(self, name: str) -> SampleLog:
        if name not in self.eval_sets:
            with output_errors(self.folder.eval_sets):
                self.folder.eval_sets.mkdir(exist_ok=True)
            self.eval_sets[name] = SampleLog(self.folder.eval_sets / f"{name}.jsonl")
        return self.eval_sets[name]

    def close(self) -> dict[str, object]:
        """Close all files and trackers, write the summary and the page; return the summary."""
        for log in (self.samples, self.evaluations, *self.eval_sets.values()):
            self.keep(log, log.close)
        others = [each for each in self.trackers if isinstance(each, ProcessTracker)]
        for tracker in self.trackers:
            if tracker not in others:
                self.keep(tracker, tracker.close)
        record = self.summary.record(self.folder)
        record["advice"] = [asdict(each) for each in self.adviser.given.values()]
        self.folder.reserve.unlink(missing_ok=True)
        self._write_summary(record)
        for page in self.trackers:
            if isinstance(page, LivePage):
                self.keep(page, page.write)
        # Trackers may upload the page, so they end after it; the summary has their outcomes.
        for other in others:
            other.run_status = self.summary.status
            self.keep(other, other.close)
        record["trackers"] = {each.job.name: each.outcome() for each in others}
        self._write_summary(record)
        return record

    def _write_summary(self, record: Mapping[str, object]) -> None:
        path = self.folder.summary
        self.keep(self.folder, lambda: write_json_atomically(path, record))

    def keep(self, place: object, write: Callable[[], T]) -> T | None:
        """Write optional output; return the result of `write`.

        A place that failed is reported once, and not tried again.
        """
        if place not in self.left_out:
            try:
                return write()
            except OutputError as error:
                self.left_out.add(place)
                self.warn(f"{error}; the run continues without it")
        return None

    def _track(self, step: int, metrics: Metrics) -> None:
        for advice in self.adviser.observe(metrics):
            changes = "\n".join(f"  - {change}" for change in advice.change)
            self.console.note(f"advice: {advice.title}: {advice.evidence}\n{changes}")
        for tracker in self.trackers:
            self.keep(tracker, partial(tracker.log, step, metrics))

    def warn(self, text: str) -> None:
        """Warn the user immediately, on the console and in the log."""
        logger.warning("%s", text)
        self.console.note(f"warning: {text}")


def _with_ends(name: str, rate: Rate) -> Metrics:
    """Return a rate and the ends of its interval as metrics."""
    return {name: rate.value, f"{name}_low": rate.low, f"{name}_high": rate.high}


def _telling(samples: Sequence[Sample], before: Sequence[Sample]) -> Sample:
    """Select an answer to show: preferably one with a changed reward, or else text."""
    pairs = list(zip(samples, before, strict=False))
    rewarded = (now for now, then in pairs if now.reward != then.reward)
    read = (now for now, then in pairs if now.response != then.response)
    return next(chain(rewarded, read, samples))
