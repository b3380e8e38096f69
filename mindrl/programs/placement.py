"""Comparison of the orders of steps: `mindrl plan placement ...`. Needs no torch."""

import argparse
from dataclasses import asdict
from pathlib import Path

from mindrl.errors import ConfigError, ModelError
from mindrl.observability.terminal import print_table, say
from mindrl.platform.device_models import DEVICE_MODELS, EXAMPLE_DEVICE, device_model
from mindrl.platform.garbage import planning
from mindrl.preflight.shipped import named_description
from mindrl.programs.arguments import Program, count, not_negative, positive
from mindrl.programs.exits import print_json
from mindrl.programs.search_progress import search_progress
from mindrl.propose.decoding import Rates
from mindrl.propose.lengths import LARGEST_TAIL, described, sampled_groups, stored_groups
from mindrl.propose.rates import rates_of
from mindrl.propose.step_orders import Arrangement, Load, Worth, best_ways, ways

_AMOUNTS = {
    "--prompts-per-step": (32, "prompts per step"),
    "--samples": (16, "responses per prompt"),
    "--prompt-tokens": (300, "tokens of a prompt"),
    "--mean-tokens": (2000, "mean length of a response"),
    "--p99-tokens": (10_000, "length that 1 response of 100 exceeds"),
    "--longest-tokens": (16_384, "length at which responses are cut"),
    "--replica-devices": (1, "devices of a rollout replica"),
    "--at-a-time": (256, "maximum sequences that a replica generates at a time"),
}
_RATES = {
    "engine_step": "minimum time of an engine step",
    "sequence_step": "time of a step per sequence, if that is longer",
    "sequence_more": "additional time of a step per sequence",
    "context_token": "additional time of a step per token of the KV cache",
    "prompt_token": "time in which a replica reads a prompt token",
    "trained_token": "time in which a device trains on a token of a response",
    "update": "fixed time of training per step",
    "switch": "time from training to rollout and back, on shared devices",
    "publish": "time to transfer new weights to separate devices",
}
_NEEDED = ("engine_step", "trained_token")
"""Rates without a default; a step would need no time without them."""
_COLUMNS = {
    "order": "{name}",
    "devices": "{devices}",
    "useful": "{useful:.0%}",
    "sequences/s": "{sequences_per_second:.3g}",
    "s per step": "{step_seconds:.3g}",
    "trainer idle": "{idle_training:.0%}",
    "rollout idle": "{idle_rollout:.0%}",
    "age": "{staleness:.1f}",
    "most": "{oldest:d}",
}
_EXAMPLE = f"""\
examples:
  mindrl plan placement --model Qwen2.5-7B --devices 16 --device {EXAMPLE_DEVICE}
  mindrl plan placement --devices 3 --rollouts outputs/mine/rollouts \\
      --engine-step 0.012 --trained-token 0.0004

devices: {", ".join(DEVICE_MODELS)}

Lengths come from the stored responses of an earlier run, or from a mean and a tail. Seconds are
derived from the sizes of a model and the rates of a device, as in plan run, unless they are given.
docs/explanation/placement.md lists the limits of the simulation.
"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--devices", required=True, type=count, metavar="N", help="total number of devices")
    add("--model", help="folder of a Hugging Face model, or a well-known name")
    add("--device", metavar="NAME", help="name of the device; see below")
    folder = "read lengths and prompts from the stored responses of a run"
    add("--rollouts", type=Path, metavar="FOLDER", help=folder)
    for option, (default, text) in _AMOUNTS.items():
        what = f"{text} (default: {default})"
        add(option, type=count, default=default, metavar="N", help=what)
    ages = "limits of the age of a group (default: 1 2 4)"
    add("--max-staleness", type=count, nargs="+", default=[1, 2, 4], metavar="N", help=ages)
    for name, text in _RATES.items():
        option = f"--{name.replace('_', '-')}"
        kind = positive if name in _NEEDED else not_negative
        add(option, type=kind, metavar="SECONDS", help=text)
    add("--steps", type=count, default=24, metavar="N", help="simulated steps (default: 24)")
    add("--json", action="store_true", help="print one JSON object")


@planning()
def _run(options: argparse.Namespace) -> int:
    if options.devices % options.replica_devices:
        raise ConfigError(
            f"--devices {options.devices} must be a multiple of --replica-devices "
            f"{options.replica_devices}"
        )
    rates, load = _rates(options), load_of(options, longest=options.longest_tokens)
    tried = [*ways(options.devices, options.replica_devices, options.max_staleness)]
    with search_progress() as notify:
        found = best_ways(
            load, rates, tried, lambda way: notify(title_of(way)), steps=options.steps
        )
    mean, p99, longest = described(load.groups)
    if options.json:
        figures = [asdict(way) | asdict(worth) for way, worth in found]
        lengths = {"mean": mean, "p99": p99, "longest": longest}
        print_json({"lengths": lengths, "rates": asdict(rates), "orders": figures})
        return 0
    groups = f"{load.prompts} prompts x {len(load.groups[0])} responses per step"
    say(f"{groups}; response tokens: mean {mean:.0f}, 99th percentile {p99}, maximum {longest}")
    print_table((_figures(way, worth) for way, worth in found), _COLUMNS)
    say("Useful: share of the devices' time that the trained tokens need in full batches.")
    return 0


def load_of(options: argparse.Namespace, *, longest: int) -> Load:
    """Return the lengths of responses, stored or simulated; simulated ones are cut at `longest`.

    Raises:
        ConfigError: The simulated distribution cannot have this mean and this tail.
        DataError: The folder contains no responses.
    """
    prompts = options.prompts_per_step
    if options.rollouts is not None:
        groups, prompt_tokens = stored_groups(options.rollouts)
        return Load(groups=groups, prompts=prompts, prompt_tokens=round(prompt_tokens))
    mean, p99 = options.mean_tokens, options.p99_tokens
    if not mean <= p99 <= LARGEST_TAIL * mean:
        most = int(LARGEST_TAIL * mean)
        raise ConfigError(f"--p99-tokens {p99} must be between {mean} (--mean-tokens) and {most}")
    groups = sampled_groups(mean, p99, longest, options.samples)
    return Load(groups=groups, prompts=prompts, prompt_tokens=options.prompt_tokens)


def _rates(options: argparse.Namespace) -> Rates:
    """Return the rates given on the command line, the rest estimated from model and device.

    Raises:
        ConfigError: A rate is neither given nor known.
        ModelError: The model is not known.
    """
    given = {name: value for name in _RATES if (value := getattr(options, name)) is not None}
    sizes = {"at_a_time": options.at_a_time, "replica_devices": options.replica_devices}
    if options.model is not None and options.device is not None:
        model, device = named_description(options.model), device_model(options.device)
        known = asdict(rates_of(model, device, replica_devices=options.replica_devices))
        return Rates(**known | given | sizes)
    if missing := [name for name in _NEEDED if name not in given]:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise ConfigError(f"{names} are missing; or give --model and --device")
    return Rates(**given | sizes)


def _figures(way: Arrangement, worth: Worth) -> dict[str, object]:
    return asdict(worth) | {"name": name_of(way), "devices": split_of(way)}


def title_of(way: Arrangement) -> str:
    """Return the text of the progress while an order is tried."""
    return f"trying {name_of(way)} on {split_of(way)} devices"


def name_of(way: Arrangement) -> str:
    """Return the name of an order: the keys that select it."""
    if way.order == "partial":
        return f"partial_rollout, max_staleness {way.max_staleness}"
    bound = f", max_staleness {way.max_staleness}" if way.order == "asynchronous" else ""
    return f"{way.order}{bound}"


def split_of(way: Arrangement) -> str:
    """Return the number of devices for training and for rollout as text."""
    return f"{way.training} + {way.rollout}" if way.is_apart else f"{way.training} shared"


PROGRAM = Program(
    about="Simulate every order of steps on shared devices and on splits of them from the "
    "lengths of responses; the best first, each with its best split.",
    examples=_EXAMPLE,
    add_options=_add_options,
    run=_run,
    bad_input=(ModelError,),
)
