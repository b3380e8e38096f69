"""Compare several methods by runs on answers with a long tail of lengths.

They need the model and the data of scripts/make_long_tail.py.
"""

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table
from tiny_runs import kept, recorded, trained

PROMPTS, SAMPLES = 16, 4
SKIPPED = 2
"""Steps at the start whose seconds do not count."""
_TASK = (
    "actor_config.load=.cache/tiny/tail/model",
    "megatron_training.data_path=.cache/tiny/tail/train.jsonl",
    "megatron_training.test_data_path=.cache/tiny/tail/test.jsonl",
    *("megatron_training.seq_length=512", "generate_config.max_model_len=512"),
    *("rl_config.max_prompt_length=24", "generate_config.sampling_config.max_tokens=480"),
    f"megatron_training.global_batch_size={PROMPTS}",
    *(f"rl_config.mini_batch_size={PROMPTS}", f"rl_config.n_samples_per_prompt={SAMPLES}"),
    *("rl_config.test_freq=0", "rl_config.memory_timeline_steps=0"),
    "megatron_training.export_interval=0",
)
Figures = dict[str, float]


def compare(
    what: str,
    ways: Mapping[str, Sequence[str]],
    of_run: Callable[[Sequence[Mapping[str, Any]]], Figures],
    *,
    steps: int,
    ratios: Sequence[str],
) -> int:
    """Run missing runs in turn from equal seeds, and print; return the exit code.

    The other methods are compared with the first by the figures that `ratios` names. `of_run`
    returns the figures of a run from the lines of its metrics.
    """
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", choices=sorted(ways), default=list(ways))
    parser.add_argument("--steps", type=int, default=steps, help="of a run; default: %(default)s")
    parser.add_argument("--json", type=Path, help="figures are kept there, and read again")
    parser.add_argument("--keep", type=Path, help="folder for the runs, with all their rollouts")
    options, overrides = parser.parse_known_args()

    def measured(way: str, seed: int) -> Figures:
        key = "megatron_training"
        own = [f"{key}.seed={seed}", f"{key}.train_iters={options.steps}"]
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            if options.keep:
                place = options.keep.absolute() / f"{way} {seed}".replace(" ", "-")
                own += [f"{key}.keep_rollouts={options.steps}"]
            trained(place, *_TASK, *ways[way], *own, *overrides)
            return of_run(recorded(place, "step"))

    turns = [(way, seed) for seed in options.seeds for way in options.only]
    found = kept(turns, measured, options.json)
    _show({way: [found[way, seed] for seed in options.seeds] for way in options.only}, ratios)
    return 0


def _show(found: Mapping[str, Sequence[Figures]], ratios: Sequence[str]) -> None:
    """Print the means over the seeds, and the gains over the first method."""
    ways = list(found)
    table = Table("mean over the seeds", *ways)
    for name in found[ways[0]][0]:
        table.add_row(name, *(f"{mean(each[name] for each in found[way]):.3g}" for way in ways))
    for name in ratios:
        base = [each[name] for each in found[ways[0]]]
        cells = []
        for way in ways:
            gained = [each[name] / first for each, first in zip(found[way], base, strict=True)]
            cells.append(f"{mean(gained):.2f} ({min(gained):.2f} to {max(gained):.2f})")
        table.add_row(f"{name}, over {ways[0]}", *cells)
    Console(width=140, highlight=False).print(table)
