"""Rewards and rows of TRL and of verl, with keys alone renamed."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from checked_runs import model_folder

from mindrl.batch.prompts import Prompt
from mindrl.config.run import RunConfig
from mindrl.data.run_data import read_data
from mindrl.launch.reward_trials import reward_inputs, try_all_rewards
from mindrl.rewards.inputs import Answered
from mindrl.rewards.scorer import RewardScorer

MakeConfig = Callable[..., RunConfig]
Rate = Callable[..., tuple[float | None, ...]]
HERE = Path(__file__).parent
TRL = {"megatron_training.prompt_column": "prompt", "megatron_training.answer_column": "solution"}
SUMS = [
    {"prompt": "1+1", "solution": "2", "task": "sum"},
    {"prompt": "2*2", "solution": "4", "task": "product"},
]
CHATS = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in SUMS]
OF_VERL = [
    {
        "data_source": source,
        "prompt": [{"role": "user", "content": question}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": {"index": index, "split": "train"},
    }
    for index, (source, question, answer) in enumerate(
        [("openai/gsm8k", "1+1", "2"), ("sums", "2*2", "4")]
    )
]


BROUGHT: dict[str, tuple[list[Any], dict[str, str], dict[str, dict[str, Any]]]] = {
    "TRL's texts": (
        SUMS,
        TRL,
        {
            "trl_rewards.py:near_20": {},
            "trl_rewards.py:boxed": {},
            "trl_rewards.py:of_sums": {},
            "trl_rewards.py:get_soft_overlong_punishment": {
                "max_completion_len": 8,
                "soft_punish_cache": 4,
            },
        },
    ),
    "TRL's chats": (CHATS, TRL, {"trl_rewards.py:tagged": {}, "trl_rewards.py:slow_judge": {}}),
    "verl's rows": (
        OF_VERL,
        {},
        {
            "verl_rewards.py:compute_score": {},
            "verl_rewards.py:with_details": {},
            "verl_rewards.py:graded": {"format_score": 0.1},
            "verl_rewards.py:compute_scores": {},
        },
    ),
}
"""Of each kind of data: two rows, the columns, and the functions with their arguments."""


@pytest.fixture(scope="module")
def rate(
    tokenizer_folder: Path, run_config: MakeConfig, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rate]:
    """Let a function of a file here rate one response to each of two rows.

    All functions of one kind of data are tried and called by one scorer.
    """
    with ExitStack() as scorers:

        @cache
        def made(kind: str) -> tuple[RewardScorer, Sequence[Prompt]]:
            rows, columns, functions = BROUGHT[kind]
            folder = tmp_path_factory.mktemp("rows")
            config = run_config(
                model_folder(folder / "model"),
                {
                    "megatron_training.data_path": written(folder, rows),
                    "megatron_training.tokenizer_name_or_path": str(tokenizer_folder),
                    "rl_config.verifier_function": [f"{HERE}/{each}" for each in functions],
                    "rl_config.verifier_weight": [1.0] * len(functions),
                    "rl_config.verifier_kwargs": [*functions.values()],
                    **columns,
                },
            )
            data = read_data(config)
            try_all_rewards(config, data)
            scorer = RewardScorer(config.rl_config, None, reward_inputs(config, data))
            return scorers.enter_context(scorer), data.train.prompts

        def rated(kind: str, function: str, responses: list[str]) -> tuple[float | None, ...]:
            scorer, prompts = made(kind)
            answered = Answered(
                prompts=prompts,
                groups=[*range(len(prompts))],
                token_ids=[[7] * len(response) for response in responses],
            )
            answers = [each.answer for each in prompts]
            scores = scorer.score(responses, answers, [each.source for each in prompts], answered)
            assert scores.failures == ()
            return scores.components[f"{HERE}/{function}"]

        yield rated


def written(folder: Path, rows: list[Mapping[str, Any]]) -> str:
    """Write rows as each of them does: verl in Parquet, and TRL's in lines of JSON."""
    if "reward_model" in rows[0]:
        pq.write_table(pa.Table.from_pylist([*rows]), folder / "rows.parquet")
        return str(folder / "rows.parquet")
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return str(folder / "rows.jsonl")


@pytest.mark.parametrize(
    ("function", "kind", "responses", "scores"),
    [
        ("near_20", "texts", ["a" * 20, "a" * 17], (0.0, -3.0)),
        ("tagged", "chats", ["<answer>2</answer>", "2"], (1.0, 0.0)),
        ("boxed", "texts", [r"so \boxed{2}", r"so \boxed{5}"], (1.0, 0.0)),
        ("of_sums", "texts", ["1+1=2", "1+1=2"], (1.0, None)),
        ("slow_judge", "chats", ["four", "five5"], (4.0, 5.0)),
        # A factory is made with its arguments.
        ("get_soft_overlong_punishment", "texts", ["x" * 6, "x" * 9], (-0.5, -1.0)),
    ],
)
def test_trls_functions_rate_trls_rows(
    function: str, kind: str, responses: list[str], scores: tuple[float, ...], rate: Rate
) -> None:
    assert rate(f"TRL's {kind}", f"trl_rewards.py:{function}", responses) == scores


@pytest.mark.parametrize(
    ("function", "responses", "scores"),
    [
        ("compute_score", ["so #### 2", "it is 4"], (1.0, 1.0)),
        ("compute_score", ["it is 2", "it is 5"], (0.0, 0.0)),
        ("with_details", ["2", "4"], (1.0, 2.0)),
        # With the arguments of the configuration.
        ("graded", ["3", "4"], (0.1, 1.0)),
        ("compute_scores", ["2", "4"], (12.0, 5.0)),
    ],
)
def test_verls_functions_rate_verls_rows(
    function: str, responses: list[str], scores: tuple[float, ...], rate: Rate
) -> None:
    assert rate("verl's rows", f"verl_rewards.py:{function}", responses) == scores
