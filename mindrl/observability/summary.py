"""Summary table at the end of a run."""

from collections.abc import Iterator, Mapping
from datetime import timedelta

from rich.console import RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from mindrl.observability.terminal import printable

STATUS_STYLES = {"completed": "green", "stopped": "green", "interrupted": "yellow", "failed": "red"}
NUMBERS = (
    ("steps", "steps", "d"),
    ("response tokens/s", "response_tokens_per_second", ",.0f"),
    ("largest mean log-prob gap", "logprob_gap_max_mean", ".1e"),
)
PLACES = (
    ("run folder", "run_dir"),
    ("report", "report"),
    ("metrics", "metrics"),
    ("TensorBoard", "tensorboard"),
    ("samples", "samples"),
    ("logs", "logs"),
    ("exported model", "model"),
    ("best model", "model_best"),
)


def render_summary(summary: Mapping[str, object]) -> RenderableType:
    """Lay out the summary of a run; entries that are missing or None are left out.

    Keys: status ("completed", "stopped" by a callback, "interrupted" or "failed"), accuracy_before
    and accuracy_after (0 to 1), evaluations (before and after, by set and name), steps, seconds,
    response_tokens_per_second, logprob_gap_max_mean (nats), reward_failures (counts by function and
    kind), trackers (their outcomes by name), restarts, steps_without_signal, the paths run_dir,
    report, metrics, tensorboard, samples, logs, model and model_best, and the steps of the last
    two, model_step and model_best_step.
    """
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in (*_accuracy(summary), *_evaluations(summary), *_numbers(summary)):
        table.add_row(label, text)
    for label, text in _warnings(summary):
        table.add_row(label, Text(printable(text), style="yellow"))
    for label, key in PLACES:
        path, step = summary.get(key), summary.get(f"{key}_step")
        if path is not None:
            suffix = "" if step is None else f" (step {step})"
            # Text, since rich would parse brackets in a path as markup.
            table.add_row(label, Text(f"{printable(str(path))}{suffix}"))
    for label, text in _trackers(summary):
        table.add_row(label, Text(printable(text)))
    status = str(summary["status"])
    title = Text(f"run {status}", style=STATUS_STYLES[status])
    return Panel(table, title=title, title_align="left", expand=False)


def _warnings(summary: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield problems of the run."""
    failures = summary.get("reward_failures")
    if isinstance(failures, Mapping):
        for function, counts in failures.items():
            kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items())
            yield "missing scores", f"{function}: {kinds}"
    if restarts := summary.get("restarts"):
        yield "restarts", f"{restarts}; see faults.jsonl"
    if steps := summary.get("steps_without_signal"):
        yield "steps without signal", str(steps)


def _trackers(summary: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield the location of the run in each tracker, and the number of missed records."""
    trackers = summary.get("trackers")
    for name, found in trackers.items() if isinstance(trackers, Mapping) else ():
        missed = f" (without {found['missed']} records)" if found["missed"] else ""
        yield name, f"{found['place'] or '-'}{missed}"


def _evaluations(summary: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield the first and last result of each set, with the 95 % interval of the last."""
    sets = summary.get("evaluations")
    for name, found in sets.items() if isinstance(sets, Mapping) else ():
        before, after = found.get("before", {}), found.get("after", {})
        for what in dict.fromkeys([*before, *after]):
            if not what.endswith(("_low", "_high")):
                ends = [_number(after.get(f"{what}_{end}"), ".3f") for end in ("low", "high")]
                values = [_number(each.get(what), ".3f") for each in (before, after)]
                # A loss has no interval.
                interval = f"  [{', '.join(ends)}]" if f"{what}_low" in {*before, *after} else ""
                yield f"{name} {what}", f"{' -> '.join(values)}{interval}"


def _accuracy(summary: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    before, after = summary.get("accuracy_before"), summary.get("accuracy_after")
    gained = ""
    if isinstance(before, int | float) and isinstance(after, int | float):
        gained = f" ({after - before:+.3f})"
    if before is not None or after is not None:
        yield "accuracy", f"{_number(before, '.3f')} -> {_number(after, '.3f')}{gained}"


def _numbers(summary: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    seconds = summary.get("seconds")
    if isinstance(seconds, int | float):
        yield "duration", str(timedelta(seconds=round(seconds)))
    for label, key, spec in NUMBERS:
        if summary.get(key) is not None:
            yield label, _number(summary[key], spec)


def _number(value: object, spec: str) -> str:
    return format(value, spec) if isinstance(value, int | float) else "-"
