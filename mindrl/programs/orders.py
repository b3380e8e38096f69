"""Orders of steps with their layouts, shown by `plan run` if response lengths are known."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mindrl.errors import ConfigError
from mindrl.observability.terminal import print_table, say
from mindrl.observability.units import memory_text
from mindrl.programs.arguments import count
from mindrl.programs.placement import load_of, name_of, split_of, title_of
from mindrl.programs.search_progress import search_progress
from mindrl.propose.candidates import Task
from mindrl.propose.lengths import described
from mindrl.propose.orders import PlacedOrder, placed_orders
from mindrl.propose.search import Proposal

_AGES = (1, 2, 4)
_COLUMNS = {
    "": "{at}.",
    "order": "{name}",
    "devices": "{devices}",
    "training": "{training}",
    "rollout": "{rollout}",
    "useful": "{useful:.0%}",
    "seqs/s": "{sequences_per_second:.3g}",
    "trains in": "{training_bytes:}",
    "draws in": "{rollout_bytes:}",
}


def add_length_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the lengths of responses."""
    add = parser.add_argument
    mean = "mean length of a response; also compares orders of steps and separate devices"
    add("--mean-tokens", type=count, metavar="N", help=mean)
    add("--p99-tokens", type=count, metavar="N", help="length that 1 response of 100 exceeds")
    folder = "folder of stored responses of a run, instead of --mean-tokens and --p99-tokens"
    add("--rollouts", type=Path, metavar="FOLDER", help=folder)


def chosen_orders(options: argparse.Namespace, task: Task, shared: Proposal) -> list[PlacedOrder]:
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
        raise ConfigError(f"{missing[0]} is missing: give both lengths, or --rollouts")
    load = load_of(options, longest=task.response_tokens)
    with search_progress() as notify:
        return placed_orders(task, shared, load, _AGES, lambda way: notify(title_of(way)))


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
        f"orders of steps, for responses of {mean:.0f} tokens (99th percentile {p99}, maximum "
        f"{longest})",
    )
    print_table((_figures(at, each) for at, each in enumerate(orders, start=1)), _COLUMNS)
    say(*(f"   {key}={str(value).lower()}" for key, value in _keys(orders[0])))
    said = "Useful: share of the devices' time that the trained tokens need in full batches"
    say("", f"{said}, simulated.")


def _figures(at: int, each: PlacedOrder) -> dict[str, object]:
    training, rollout = (text.partition(":")[2] for text in _layouts(each))
    return asdict(each.worth) | {
        "at": at,
        "name": name_of(each.way),
        "devices": split_of(each.way),
        "training": training,
        "rollout": rollout,
        "training_bytes": memory_text(each.training.peak_bytes),
        "rollout_bytes": memory_text(each.rollout.peak_bytes),
    }


def _layouts(each: PlacedOrder) -> tuple[str, str]:
    training, rollout = each.task.texts(each.candidate)
    return training, rollout


def _keys(first: PlacedOrder) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values by which an order differs from the shared-device proposal."""
    yield from first.task.placement.items()
    training, rollout = _layouts(first)
    yield "actor_config.backend", training
    yield "generate_config.backend", rollout
