"""Orders of steps with their layouts, shown by `plan run` if response lengths are known."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from mindrl.errors import ConfigError
from mindrl.observability.terminal import say
from mindrl.observability.units import memory_text
from mindrl.programs.arguments import count
from mindrl.programs.placement import load_of, name_of, split_of
from mindrl.propose.candidates import Task
from mindrl.propose.lengths import described
from mindrl.propose.orders import PlacedOrder, placed_orders
from mindrl.propose.search import Proposal

_AGES = (1, 2, 4)
_TEXT = ("", "order", "devices", "training", "rollout")
_NUMBERS = ("useful", "seqs/s", "trains in", "draws in")
_WIDTH = 120


def add_length_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the lengths of responses."""
    add = parser.add_argument
    mean = "mean length of a response; orders of steps are then compared, devices apart too"
    add("--mean-tokens", type=count, metavar="N", help=mean)
    add("--p99-tokens", type=count, metavar="N", help="length that 1 response of 100 exceeds")
    folder = "in the place of both: the responses that a run kept there"
    add("--rollouts", type=Path, metavar="FOLDER", help=folder)


def asked_orders(options: argparse.Namespace, task: Task, shared: Proposal) -> list[PlacedOrder]:
    """Return the orders of steps, the most useful first; empty if no lengths are given.

    Raises:
        ConfigError: One of two lengths is missing, or no distribution has them.
        DataError: The folder contains no responses.
    """
    given = {"--mean-tokens": options.mean_tokens, "--p99-tokens": options.p99_tokens}
    missing = [name for name, value in given.items() if value is None]
    if options.rollouts is None and len(missing) == len(given):
        return []
    if options.rollouts is None and missing:
        raise ConfigError(f"{missing[0]} is missing: lengths are a mean and a tail, or --rollouts")
    load = load_of(options, longest=task.response_tokens)
    return placed_orders(task, shared, load, _AGES)


def order_figures(orders: Sequence[PlacedOrder]) -> list[dict[str, Any]]:
    """Return the figures of the orders; sizes in bytes."""
    return [
        {
            **asdict(each.way),
            **asdict(each.worth),
            **dict(zip(("training_layout", "rollout_layout"), _layouts(each), strict=True)),
            "training_peak_bytes": each.training.peak_bytes,
            "rollout_peak_bytes": each.rollout.peak_bytes,
            "kv_sequences": each.rollout.kv_sequences,
            "config": each.config,
        }
        for each in orders
    ]


def print_orders(options: argparse.Namespace, task: Task, orders: Sequence[PlacedOrder]) -> None:
    """Print a table of orders with their layouts, and the keys of the first."""
    mean, p99, longest = described(load_of(options, longest=task.response_tokens).groups)
    say(
        "",
        f"orders of steps, by responses of {mean:.0f} tokens (99th percentile {p99}, most "
        f"{longest})",
    )
    table = Table(box=SIMPLE)
    for title in (*_TEXT, *_NUMBERS):
        table.add_column(title, justify="right" if title in _NUMBERS else "left", no_wrap=True)
    for at, each in enumerate(orders, start=1):
        table.add_row(*_row(at, each))
    Console(width=_WIDTH, highlight=False).print(table)
    say(*(f"   {key}={str(value).lower()}" for key, value in _keys(orders[0])))
    said = "Useful: share of the devices' time that the trained tokens would take in full batches"
    say("", f"{said}, simulated.")


def _row(at: int, each: PlacedOrder) -> Iterator[str]:
    yield f"{at}."
    yield name_of(each.way)
    yield split_of(each.way)
    yield from (text.partition(":")[2] for text in _layouts(each))
    yield f"{each.worth.useful:.0%}"
    yield f"{each.worth.sequences_per_second:.3g}"
    yield memory_text(each.training.peak_bytes)
    yield memory_text(each.rollout.peak_bytes)


def _layouts(each: PlacedOrder) -> tuple[str, str]:
    training, rollout = each.task.texts(each.candidate)
    return training, rollout


def _keys(first: PlacedOrder) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values by which an order differs from the shared-device proposal."""
    yield from first.task.placement.items()
    training, rollout = _layouts(first)
    yield "actor_config.backend", training
    yield "generate_config.backend", rollout
