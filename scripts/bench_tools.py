"""Compare GRPO with tools with TRL's: the same environment, model, prompts and lengths.

    mindrl quickstart --config-name grpo_tools_tiny_cpu        # makes the model
    python scripts/bench_tools.py [--trl PYTHON] [--rounds 3] [--steps 6] [key=value ...]

Both run the class of adder.py, in turn on this machine: mindrl with two workers, TRL with the
generation of transformers in one process with two threads. The learning rate is almost zero, so
that conversations do not change. The first two steps of each run do not count. Then mindrl's host
of environments gets each turn that TRL's policy wrote: the sequences, their masks and the rewards
must be the same, except that the two word the error of a failed call differently.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from tiny_runs import CHECKOUT, STEPS_ALONE, recorded, trained
from transformers import AutoTokenizer

from mindrl.batch.conversations import Dialogue
from mindrl.batch.prompts import Prompt, PromptRow
from mindrl.config.environment import EnvironmentConfig
from mindrl.data.turn_template import TurnTemplate
from mindrl.environments.host import EnvironmentHost, Limits
from mindrl.environments.process import EnvironmentSpec
from mindrl.trainer.source.environment_turns import EnvironmentTurns
from mindrl.trainer.source.group import OpenSequence

MODEL, DATA = ".cache/tiny/tools_model", ".cache/tiny/data/train.jsonl"
ENVIRONMENT = f"{CHECKOUT}/scripts/adder.py:Adder"
PROMPTS, SAMPLES, TURNS, MAX_TOKENS, SKIPPED = 16, 8, 3, 144, 2
_FAILED_CALL = "{'error':"
Steps = list[dict[str, float]]


def main() -> int:
    """Run both in turn and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trl", default=sys.executable, help="interpreter that has TRL")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=6, help="of each run (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options, overrides = parser.parse_known_args()
    if not (CHECKOUT / MODEL).is_dir():
        print(f"error: {MODEL} is missing; see the first lines of this file", file=sys.stderr)
        return 2
    found: dict[str, Steps] = defaultdict(list)
    drawn: list[dict[str, Any]] = []
    turns = [name for _ in range(options.rounds) for name in ("mindrl", "TRL")]
    for name in track(turns, "in turns", console=Console(stderr=True)):
        if name == "mindrl":
            found[name] += ours(options.steps, overrides)[SKIPPED:]
        else:
            steps, drawn = theirs(options.trl, options.steps)
            found[name] += steps[SKIPPED:]
    unequal, failed = compared(drawn)
    show(found, len(drawn), unequal, failed)
    if options.json:
        figures = {**found, "conversations": len(drawn), "unequal": unequal, "failed calls": failed}
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 1 if any(unequal.values()) else 0


def ours(steps: int, overrides: list[str]) -> Steps:
    """Run mindrl's program."""
    keys = [
        *("--config-name", "grpo_tools_tiny_cpu", *STEPS_ALONE, "actor_config.lr=1e-12"),
        *(f"megatron_training.train_iters={steps}", "environment_config.tools=[]"),
        *(f"environment_config.environment={ENVIRONMENT}", "environment_config.reward_weight=1.0"),
        *("rl_config.verifier_function=[]", "rl_config.verifier_weight=[]", *overrides),
    ]
    with tempfile.TemporaryDirectory() as folder:
        trained(Path(folder), *keys, program="cli/train.py")
        rows = recorded(Path(folder))
    return [
        {
            "seconds": row["seconds/step"],
            "tokens": row["rollout/response_tokens"] + row["turns/environment_tokens"],
            "reward": row["reward/mean"],
        }
        for row in rows
    ]


def theirs(python: str, steps: int) -> tuple[Steps, list[dict[str, Any]]]:
    """Run TRL; return its steps and all conversations."""
    work = {
        "model": MODEL,
        "data": DATA,
        "prompts": PROMPTS,
        "samples": SAMPLES,
        "turns": TURNS,
        "max_tokens": MAX_TOKENS,
        "steps": steps + 1,
        "seed": 1,
    }
    environment = os.environ | {"OMP_NUM_THREADS": str(os.cpu_count() or 1)}
    done = subprocess.run(
        [python, "scripts/trl_tools.py", json.dumps(work)],
        cwd=CHECKOUT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    size, conversations = PROMPTS * SAMPLES, found["conversations"]
    rewards = [
        statistics.mean(each["reward"] for each in conversations[at : at + size])
        for at in range(size, len(conversations), size)
    ]
    pairs = zip(found["seconds"], found["tokens"], rewards, strict=True)
    steps_ = [{"seconds": each[0], "tokens": each[1], "reward": each[2]} for each in pairs]
    return steps_, conversations


def compared(drawn: list[dict[str, Any]]) -> tuple[dict[str, int], int]:
    """Pass on each turn that TRL's policy wrote; count conversations that differ.

    Returns also the number of those with a failed call, of which only rewards are compared.
    """
    tokenizer = AutoTokenizer.from_pretrained(CHECKOUT / MODEL)
    host = EnvironmentHost(
        spec=EnvironmentSpec(environment=ENVIRONMENT),
        limits=Limits(processes=16, start_seconds=60.0, call_seconds=60.0),
    )
    turns = EnvironmentTurns(
        owner="comparison",
        config=EnvironmentConfig(environment=ENVIRONMENT, max_turns=TURNS),
        host=host,
        template=TurnTemplate.of(tokenizer, [tokenizer.eos_token_id], is_kept=True),
        decode=lambda ids: tokenizer.decode(ids, skip_special_tokens=True),
        longest=MAX_TOKENS,
        longest_prompt=64,
        warn=print,
    )
    unequal, failed = {"tokens": 0, "masks": 0, "rewards": 0}, 0
    for number, each in enumerate(track(drawn, "conversations", console=Console(stderr=True))):
        columns = {"answer": each["answer"]}
        row = PromptRow(columns=columns, messages=({"role": "user", "content": ""},), is_chat=True)
        prompt = Prompt(uid=number, token_ids=(1,), text="", answer="", row=row)
        ids, mask, reward = conversation(turns, number, prompt, each)
        unequal["rewards"] += reward != each["reward"]
        if _FAILED_CALL in tokenizer.decode(each["ids"]):
            failed += 1
            continue
        unequal["tokens"] += ids != each["ids"]
        unequal["masks"] += mask != each["mask"]
    host.close()
    return unequal, failed


def conversation(
    turns: EnvironmentTurns, number: int, prompt: Prompt, theirs: dict[str, Any]
) -> tuple[list[int], list[int], float]:
    """Return the tokens, the mask and the reward of a conversation with TRL's turns."""
    key, sequence = (number, 0), OpenSequence.started(0, Dialogue())
    turns.begin(key, sequence, prompt, 0)
    sequence = answered(turns, key, sequence, prompt)
    for written in written_turns(theirs["ids"], theirs["mask"]):
        if talk(sequence).ending is not None:
            break
        finished = written[-1] == turns.template.end
        tokens = torch.tensor(written)
        none = torch.zeros(len(written))
        sequence = sequence.with_more(tokens, none, step=1, finished=finished)
        sequence = turns.drawn(key, sequence, prompt)
        if key in turns.waiting:
            sequence = answered(turns, key, sequence, prompt)
    mask = torch.zeros(len(sequence.tokens_N), dtype=torch.int64)
    for turn in talk(sequence).turns:
        mask[turn.start : turn.end] = 1
    turns.host.end_all(turns.owner)
    reward = sum(turn.reward for turn in talk(sequence).turns)
    return sequence.tokens_N.tolist(), mask.tolist(), reward


def answered(
    turns: EnvironmentTurns, key: tuple[int, int], sequence: OpenSequence, prompt: Prompt
) -> OpenSequence:
    """Wait for the answer to a conversation and add it."""
    while True:
        for _, answer in turns.answers(10.0):
            return turns.answered(key, sequence, prompt, answer)


def talk(sequence: OpenSequence) -> Dialogue:
    """Return the turns of a conversation."""
    assert sequence.conversation is not None, "it has an environment"
    return sequence.conversation


def written_turns(ids: list[int], mask: list[int]) -> list[list[int]]:
    """Return the tokens of each turn of the policy."""
    found: list[list[int]] = []
    for at, (token, is_drawn) in enumerate(zip(ids, mask, strict=True)):
        if not is_drawn:
            continue
        if at == 0 or not mask[at - 1]:
            found.append([])
        found[-1].append(token)
    return found


def show(found: dict[str, Steps], count: int, unequal: dict[str, int], failed: int) -> None:
    """Print the steps, their ratio, and what differs."""
    console = Console(width=110, highlight=False)
    table = Table(
        "", "steps", "seconds of a step", "tokens of a step", "mean reward", "over mindrl"
    )
    whole = statistics.median(step["seconds"] for step in found["mindrl"])
    for name, steps in found.items():
        seconds, tokens = (
            statistics.median(step[key] for step in steps) for key in ("seconds", "tokens")
        )
        reward = statistics.mean(step["reward"] for step in steps)
        cells = (f"{seconds:.2f}", f"{tokens:.0f}", f"{reward:.3f}", f"{seconds / whole:.2f}")
        table.add_row(name, str(len(steps)), *cells)
    console.print(table)
    console.print(f"{count} conversations of TRL repeated in mindrl's host; unequal: {unequal}")
    console.print(f"{failed} of them have a failed call, of which only rewards are compared")


if __name__ == "__main__":
    sys.exit(main())
