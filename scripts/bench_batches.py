"""Measure the cost of a step's batches for the driver: shares to the workers, answers back.

    python scripts/bench_batches.py [--sequences 1024] [--tokens 1024] [--ranks 4] [--json FILE]

now      this project: responses are tensors throughout, one rank of each replica answers, and a
         share is pickled once for all ranks of its replica
former   a tuple of Python numbers per response, every rank answers, and each rank gets a share

Prints nanoseconds of the driver per response token, and bytes pickled per step. Answers are read
from Ray's object store and arranged; shares are put into it: the prompts, the sequences for two
scorings, and one update. Times are CPU times of the driver, the minimum of several.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ray
import torch
from ray import cloudpickle
from rich.console import Console
from rich.table import Table

from mindrl.batch.experience import Minibatch
from mindrl.batch.rollouts import Responses, Rollouts
from mindrl.layouts.layout import even_bounds

REPLICAS = 4
SAMPLES = 8
PROMPT_TOKENS = 256
VOCABULARY = 150_000
CONSOLE = Console(width=100, highlight=False)


class FormerResponse(NamedTuple):
    """A response with a Python number for each token and for each log-prob."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finished: bool


class Step(NamedTuple):
    """Prompts, and a model that answers each of them `SAMPLES` times."""

    prompts: list[tuple[int, ...]]
    token_ids: list[tuple[int, ...]]
    logprobs: list[tuple[float, ...]]
    group: list[int]


def nbytes(value: object) -> int:
    """Return the bytes of a value, pickled as by Ray: large buffers are separate."""
    buffers: list[Any] = []
    text = cloudpickle.dumps(
        value, protocol=5, buffer_callback=lambda buffer: buffers.append(buffer.raw())
    )
    return len(text) + sum(buffer.nbytes for buffer in buffers)


def drawn_step(sequences: int, tokens: int) -> Step:
    """Sample a step with responses of `tokens` / 2 to `tokens` tokens."""
    generator = torch.Generator().manual_seed(1)

    def draw(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(VOCABULARY, (count,), generator=generator).tolist())

    lengths = [tokens - length % (tokens // 2) for length in draw(sequences)]
    return Step(
        prompts=[draw(PROMPT_TOKENS) for _ in range(sequences // SAMPLES)],
        token_ids=[draw(length) for length in lengths],
        logprobs=[tuple((-torch.rand(n, generator=generator)).tolist()) for n in lengths],
        group=[index // SAMPLES for index in range(sequences)],
    )


def replicas(count: int) -> list[slice]:
    """Return the rows of each replica."""
    return [slice(start, end) for start, end in even_bounds(count, REPLICAS)]


def answers_now(step: Step) -> list[Responses]:
    """Answer as the first ranks of the replicas do."""
    return [
        Responses.of(ids := step.token_ids[rows], step.logprobs[rows], [True] * len(ids))
        for rows in replicas(len(step.group))
    ]


def answers_former(step: Step, ranks: int) -> list[list[FormerResponse]]:
    """Answer as all ranks of the replicas did."""
    found = []
    for rows in replicas(len(step.group)):
        pairs = zip(step.token_ids[rows], step.logprobs[rows], strict=True)
        found += [[FormerResponse(ids, each, True) for ids, each in pairs]] * ranks
    return found


def batch_now(step: Step, answers: Sequence[Responses]) -> Rollouts:
    """Arrange the answers."""
    return Rollouts.from_responses(step.prompts, Responses.joined(answers), step.group)


def batch_former(step: Step, answers: Sequence[Sequence[FormerResponse]], ranks: int) -> Rollouts:
    """Arrange the answers of the first ranks."""
    responses = [response for reply in answers[::ranks] for response in reply]
    prompts = [step.prompts[index] for index in step.group]
    pairs = [*zip(prompts, responses, strict=True)]
    lengths = [len(prompt) + len(response.token_ids) for prompt, response in pairs]
    tokens_BT = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    mask_BT, logprobs_BT = torch.zeros_like(tokens_BT).bool(), torch.zeros(tokens_BT.shape)
    for row, (prompt, response) in enumerate(pairs):
        start, end = len(prompt), lengths[row]
        tokens_BT[row, :end] = torch.tensor([*prompt, *response.token_ids])
        mask_BT[row, start:end] = True
        logprobs_BT[row, start:end] = torch.tensor(response.logprobs)
    return Rollouts(
        tokens_BT=tokens_BT,
        lengths_B=torch.tensor(lengths),
        response_mask_BT=mask_BT,
        rollout_logprobs_BT=logprobs_BT,
        group_B=torch.tensor(step.group),
        finished_B=torch.tensor([response.finished for response in responses]),
    )


def shares(step: Step, rollouts: Rollouts) -> list[object]:
    """Return the data that a step sends to each replica: prompts, two scorings and one update."""
    ones_BT = rollouts.response_mask_BT.float()
    sequences = rollouts.sequences()
    minibatch = Minibatch(
        tokens_BT=rollouts.tokens_BT,
        lengths_B=rollouts.lengths_B,
        response_mask_BT=rollouts.response_mask_BT,
        old_logprobs_BT=ones_BT,
        advantages_BT=ones_BT,
        token_weights_BT=ones_BT,
        ref_logprobs_BT=ones_BT,
    )
    found: list[object] = []
    for rows in replicas(len(step.group)):
        asked = [step.prompts[index] for index in step.group[rows]]
        # By index, as in the driver: a slice would be a view that pickles its whole tensor.
        dealt = torch.arange(len(step.group))[rows]
        found += [asked, sequences.rows(dealt), sequences.rows(dealt), minibatch.rows(dealt)]
    return found


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the minimum CPU time in seconds."""
    found = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def measure(step: Step, ranks: int, repeats: int) -> dict[str, dict[str, float]]:
    """Return nanoseconds per response token and bytes per step, of both ways. Needs Ray."""
    now, former = answers_now(step), answers_former(step, ranks)
    stored_now, stored_former = [*map(ray.put, now)], [*map(ray.put, former)]
    sent = shares(step, batch_now(step, now))
    spent = {
        "answers": (
            lambda: batch_former(step, ray.get(stored_former), ranks),
            lambda: batch_now(step, ray.get(stored_now)),
        ),
        "shares": (
            lambda: [ray.put(each) for each in sent for _ in range(ranks)],
            lambda: [ray.put(each) for each in sent],
        ),
    }
    ns = 1e9 / sum(map(len, step.token_ids))
    times = {
        f"{name}, ns per token": [ns * seconds(way, repeats) for way in ways]
        for name, ways in spent.items()
    }
    once = sum(map(nbytes, sent))
    sizes = {
        "answers, bytes": [sum(map(nbytes, former)), sum(map(nbytes, now))],
        "shares, bytes": [once * ranks, once],
    }
    return {
        name: {"former": before, "now": after}
        for name, (before, after) in [*times.items(), *sizes.items()]
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sequences", type=int, default=1024, help="sequences of a step")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens of the longest response")
    parser.add_argument("--ranks", type=int, default=4, help="ranks of each of the 4 replicas")
    parser.add_argument("--repeats", type=int, default=3, help="repetitions; the minimum counts")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    arguments = parser.parse_args()
    step = drawn_step(arguments.sequences, arguments.tokens)
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    result = measure(step, arguments.ranks, arguments.repeats)
    ray.shutdown()
    table = Table(title=f"{arguments.sequences} sequences, {REPLICAS} x {arguments.ranks} ranks")
    for column in ("", "former", "now", "former / now"):
        table.add_column(column, justify="right")
    for name, ways in result.items():
        former, now = ways["former"], ways["now"]
        table.add_row(name, f"{former:,.1f}", f"{now:,.1f}", f"{former / now:.1f} x")
    CONSOLE.print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
