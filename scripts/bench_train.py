"""Measure the training side: packs, balance, memory of the log-probs, recomputation.

    python scripts/bench_train.py [--only packing] [--repeats 3] [--quick] [--json results.json]

packing     updates of a model of 4 layers on a long-tailed batch, packed and padded in turn: useful
            tokens per second (without padding), tokens that the network processed, and the
            difference of the gradient from that of the first row
balance     modelled work of the busiest replica divided by the mean, with sequences assigned in
            order and by Karmarkar and Karp's method
memory      log-probs of 4,096 tokens over a vocabulary of 151,936: peak of extra memory divided by
            the float32 logits of one chunk
prompts     updates on 8 samples of each prompt, with every sequence whole and with the prompt once,
            for four ratios of prompt and response, and on 8 conversations of 4 turns; with --trl
            PYTHON also those of TRL's GRPO, there (`mindrl tiny --output .cache/tiny` first)
recompute   updates without recomputation, with recomputed attention and with recomputed layers

One process on one core, torch on CPU. Every comparison is made in one run. Times of updates are CPU
times, so other programs have little influence.
"""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mindrl.batch.balance import MicroBatching, partition, sequence_costs
from mindrl.models.decoder import forward_cost
from mindrl.models.description import ModelDescription
from mindrl.platform.device import PLATFORMS, prepare_process

Result = dict[str, Any]

QWEN_7B = ModelDescription(
    model_type="qwen2",
    num_hidden_layers=28,
    hidden_size=3584,
    intermediate_size=18944,
    num_attention_heads=28,
    num_key_value_heads=4,
    head_dim=128,
    vocab_size=152_064,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    max_position_embeddings=32_768,
    tie_word_embeddings=False,
    attention_bias=True,
)

RATIOS = (("8:1", 512, 64), ("4:1", 256, 64), ("1:1", 128, 128), ("1:4", 64, 256))
"""Name, tokens of the prompt, and tokens of the response."""
SHORTEST = 24
CHECKOUT = Path(__file__).resolve().parents[1]
TOKENIZER = str(CHECKOUT / ".cache/tiny/model")
CONSOLE = Console(width=110, highlight=False)


def long_tail(count: int, longest: int, seed: int) -> list[int]:
    """Sample log-normal lengths with a mean of 30 % of the longest, cut off at the longest."""
    draw = random.Random(seed)
    shape = sorted(math.exp(draw.gauss(0.0, 1.0)) for _ in range(count))

    def lengths(scale: float) -> list[int]:
        return [min(longest, max(SHORTEST, round(scale * value))) for value in shape]

    low, high = 0.0, float(longest)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if sum(lengths(middle)) < 0.3 * count * longest else (low, middle)
        )
    found = lengths(high)
    found[-1] = longest
    draw.shuffle(found)
    return found


def training_runs() -> Any:
    """Prepare this process for Megatron and import its modules."""
    # Megatron's preferences and deprecations.
    warnings.simplefilter("ignore")
    cpu = PLATFORMS["cpu"]
    # This process needs no vLLM.
    prepare_process(replace(cpu, patches=()))
    return import_module("train_runs")


def measure_packing(arguments: argparse.Namespace) -> Result:
    """Update with micro-batches by count and by tokens, packed and padded."""
    runs = training_runs()
    longest = 64 if arguments.quick else 256
    lengths = long_tail(8 if arguments.quick else 32, longest, seed=4)
    cuts = {f"{size} sequences": MicroBatching(sequences=size) for size in (1, 2, 4, 8)}
    ways = {
        f"{name}, {'packed' if packed else 'padded'}": runs.Way(micro_batching=cut, packed=packed)
        for name, cut in cuts.items()
        for packed in (False, True)
    }
    for budget in (longest, 2 * longest, 4 * longest):
        cut = MicroBatching(sequences=1, tokens=budget)
        ways[f"{budget} tokens, packed"] = runs.Way(micro_batching=cut, packed=True)

    def run(folder: str) -> Result:
        trainer = runs.Trainer(folder, runs.batch(lengths))
        return runs.compare({"": trainer}, ways, arguments.repeats)  # type: ignore[no-any-return]

    return {"lengths": lengths, "ways": runs.with_model(run)}


def show_packing(result: Result) -> None:
    """Print a table of pairs."""
    lengths, ways = result["lengths"], result["ways"]
    CONSOLE.print(describe(lengths))
    table = Table(title="packed and padded updates, one core, float32, median")
    for column in (
        "micro-batch",
        "",
        "passes",
        "tokens in",
        "seconds",
        "useful tokens/s",
        "packed",
    ):
        table.add_column(column, justify="left" if column in ("micro-batch", "") else "right")
    for name, way in ways.items():
        cut, kind = name.split(", ")
        padded = ways.get(f"{cut}, padded")
        compared = padded is not None and kind == "packed"
        table.add_row(
            cut if kind == "padded" or padded is None else "",
            kind,
            str(way["passes"]),
            str(way["tokens"]),
            f"{way['seconds']:.2f}",
            f"{sum(lengths) / way['seconds']:.0f}",
            f"{padded['seconds'] / way['seconds']:.2f} x" if compared else "",
        )
    CONSOLE.print(table)
    show_agreement(ways)


def show_agreement(ways: Result) -> None:
    """Print the differences of the gradients; every division must give the same gradient."""
    norms = max(way["norm_difference"] for way in ways.values())
    gradients = max(way["gradient_difference"] for way in ways.values())
    CONSOLE.print(
        f"gradient norm {next(iter(ways.values()))['norm']:.6f}; largest relative difference: "
        f"norms {norms:.1e}, gradients {gradients:.1e}\n"
    )
    # Sums of a few thousand float32 numbers in a different order.
    assert max(norms, gradients) < 1e-5, ways


def describe(lengths: list[int]) -> str:
    """Describe the lengths of sequences, with a histogram of eighths of the longest."""
    longest = max(lengths)
    bins = [0] * 8
    for length in lengths:
        bins[(length - 1) * 8 // longest] += 1
    mean = sum(lengths) / len(lengths)
    return (
        f"{len(lengths)} sequences, mean {mean:.0f} tokens, longest {longest} "
        f"(mean {mean / longest:.0%} of it); by eighths of it: {' '.join(map(str, bins))}"
    )


def measure_balance(arguments: argparse.Namespace) -> Result:
    """Assign batches to replicas; return the mean over several samples of busiest over mean."""
    linear, quadratic = forward_cost(QWEN_7B)
    draws = [long_tail(256, 16_384, seed) for seed in range(2 if arguments.quick else 20)]
    results: Result = {"lengths": draws[0], "spread": {}}
    for replicas in (2, 4, 8):
        spreads: dict[str, list[float]] = {"in order": [], "balanced": []}
        for lengths in draws:
            costs = sequence_costs(lengths, linear=linear, quadratic=quadratic)
            share = len(costs) // replicas
            in_order = [list(range(at, at + share)) for at in range(0, len(costs), share)]
            for name, groups in (("in order", in_order), ("balanced", partition(costs, replicas))):
                work = [sum(costs[index] for index in group) for group in groups]
                spreads[name].append(max(work) * replicas / sum(work))
        results["spread"][replicas] = {
            name: {"mean": sum(found) / len(found), "worst": max(found)}
            for name, found in spreads.items()
        }
    return results


def show_balance(result: Result) -> None:
    """Print a table."""
    CONSOLE.print(f"first draw: {describe(result['lengths'])}")
    table = Table(
        title="work of the busiest replica over the mean, Qwen2.5-7B: mean of draws (worst)"
    )
    for column in ("replicas", "in order", "balanced"):
        table.add_column(column, justify="right")
    for replicas, spread in result["spread"].items():
        cells = [
            f"{spread[name]['mean']:.4f} ({spread[name]['worst']:.4f})"
            for name in ("in order", "balanced")
        ]
        table.add_row(str(replicas), *cells)
    CONSOLE.print(table)


def measure_memory(arguments: argparse.Namespace) -> Result:
    """Start a separate process that returns freed memory at once."""
    sizes = ["--tokens", "256", "--vocabulary", "20000", "--chunks", "64", "128"]
    output = subprocess.run(
        [
            sys.executable,
            str(Path(__file__).with_name("logprob_memory.py")),
            *(sizes if arguments.quick else []),
        ],
        env=os.environ
        | {
            "MALLOC_MMAP_THRESHOLD_": "65536",
            # Larger pages take a third of the time; sizes grow by 2 MiB at most.
            "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        },
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return {"runs": json.loads(output.splitlines()[-1])}


def show_memory(result: Result) -> None:
    """Print a table; no method with chunks may need the memory of two of them."""
    table = Table(title="log-probs, hidden size 64: peak of extra memory")
    columns = (
        "weight",
        "chunk",
        "gradients",
        "seconds",
        "resident",
        "of a chunk",
        "allocated",
        "off",
    )
    for column in columns:
        table.add_column(column, justify="left" if column == "weight" else "right")
    for run in result["runs"]:
        chunk = run["chunk_bytes"]
        table.add_row(
            run["dtype"],
            "all at once" if run["whole"] else str(run["chunk"]),
            "yes" if run["backward"] else "no",
            f"{run['seconds']:.2f}",
            f"{run['resident'] / 1e6:.0f} MB",
            f"{run['resident'] / chunk:.2f}",
            f"{run['allocated'] / chunk:.2f}",
            " ".join(f"{difference:.0e}" for difference in run["difference"]),
        )
        assert run["whole"] or max(run["resident"], run["allocated"]) < 2 * chunk, run
    CONSOLE.print(table)
    CONSOLE.print(
        "off: relative, of log-probs and gradients (hidden states, weight) to all at once\n"
    )


def measure_prompts(arguments: argparse.Namespace) -> Result:
    """Update on samples of one prompt, whole and with the prompt once, in turn."""
    runs = training_runs()
    samples, scale = 8, 8 if arguments.quick else 1
    groups = 1 if arguments.quick else 2
    way = runs.Way(micro_batching=MicroBatching(sequences=samples), packed=True)
    ways = {"whole": way, "shared": replace(way, shares_prompts=True)}

    def run(folder: str) -> Result:
        found: Result = {}
        work = {"model": folder, "tokenizer": TOKENIZER, "samples": samples, "groups": groups}
        with ExitStack() as stack:
            rival = None
            if arguments.trl:
                rival = stack.enter_context(runs.trl_updates(arguments.trl, work))
            for ratio, prompt, response in RATIOS:
                sizes = prompt // scale, response // scale
                lengths = [sum(sizes)] * samples * groups
                trainer = runs.Trainer(folder, runs.batch(lengths, sizes[0], samples))
                found[ratio] = runs.compare({"": trainer}, ways, arguments.repeats)
                if rival is not None:
                    times = [rival(*sizes) for _ in range(arguments.repeats)]
                    found[ratio]["TRL"] = {"seconds": statistics.median(times)}
        trainer = runs.Trainer(folder, runs.conversations(samples, scale))
        found[f"{runs.TURNS} turns"] = runs.compare({"": trainer}, ways, arguments.repeats)
        return found

    return runs.with_model(run)  # type: ignore[no-any-return]


def show_prompts(result: Result) -> None:
    """Print a table of ratios."""
    table = Table(title="updates on 8 samples a prompt, one core, float32, median")
    for column in (
        *("prompt:response", "whole, s", "shared, s", "quicker", "fewer tokens"),
        *("TRL, s", "TRL over shared"),
    ):
        table.add_column(column, justify="right")
    for ratio, ways in result.items():
        whole, shared, trl = ways["whole"], ways["shared"], ways.get("TRL")
        table.add_row(
            ratio,
            f"{whole['seconds']:.2f}",
            f"{shared['seconds']:.2f}",
            f"{whole['seconds'] / shared['seconds']:.2f} x",
            f"{whole['tokens'] / shared['tokens']:.2f} x",
            f"{trl['seconds']:.2f}" if trl else "-",
            f"{trl['seconds'] / shared['seconds']:.2f} x" if trl else "-",
        )
    CONSOLE.print(table)
    for ways in result.values():
        show_agreement({name: ways[name] for name in ("whole", "shared")})


def measure_recompute(arguments: argparse.Namespace) -> Result:
    """Update three models that keep different activations."""
    runs = training_runs()
    lengths = long_tail(8 if arguments.quick else 32, 64 if arguments.quick else 256, seed=4)
    way = runs.Way(micro_batching=MicroBatching(sequences=8), packed=True)

    def run(folder: str) -> Result:
        trainers = {
            name: runs.Trainer(folder, runs.batch(lengths), recompute)
            for name, recompute in runs.RECOMPUTED.items()
        }
        results: Result = runs.compare(trainers, {"": way}, arguments.repeats)
        for name, trainer in trainers.items():
            results[name]["peak"] = trainer.peak(way)
        return results

    return {"ways": runs.with_model(run)}


def show_recompute(result: Result) -> None:
    """Print a table."""
    ways = result["ways"]
    table = Table(title="updates of 8 packed sequences a pass")
    for column in ("recomputed", "seconds", "of none", "allocated at most"):
        table.add_column(column, justify="left" if column == "recomputed" else "right")
    for name, way in ways.items():
        ratio = way["seconds"] / ways["none"]["seconds"]
        table.add_row(
            name, f"{way['seconds']:.2f}", f"{ratio:.2f} x", f"{way['peak'] / 1e6:.0f} MB"
        )
    CONSOLE.print(table)
    show_agreement(ways)


PARTS: dict[str, tuple[Callable[[argparse.Namespace], Result], Callable[[Result], None]]] = {
    "packing": (measure_packing, show_packing),
    "balance": (measure_balance, show_balance),
    "memory": (measure_memory, show_memory),
    "prompts": (measure_prompts, show_prompts),
    "recompute": (measure_recompute, show_recompute),
}


def main() -> int:
    """Measure the chosen parts, and print each result when it is finished."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3, help="updates per method")
    parser.add_argument(
        "--quick", action="store_true", help="use small sizes: fast, invalid figures"
    )
    parser.add_argument(
        "--only", choices=PARTS, nargs="+", default=list(PARTS), help="parts to run"
    )
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--trl", metavar="PYTHON", help="interpreter that has TRL, for prompts")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # The profiler logs its start and its end.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    results = {}
    for name in arguments.only:
        measure, show = PARTS[name]
        results[name] = measure(arguments)
        show(results[name])
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
