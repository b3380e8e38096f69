"""Rewards and rows of TRL and of verl, with keys alone renamed."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from checked_runs import model_folder

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


@pytest.fixture
def rate(tokenizer_folder: Path, run_config: MakeConfig, tmp_path: Path) -> Rate:
    """Let a function of a file here rate one response to each of two rows."""

    def rated(
        function: str, rows: list[Any], responses: list[str], **changes: Any
    ) -> tuple[float | None, ...]:
        name = f"{HERE}/{function}"
        config = run_config(
            model_folder(tmp_path / "model"),
            {
                "megatron_training.data_path": written(tmp_path, rows),
                "megatron_training.tokenizer_name_or_path": str(tokenizer_folder),
                "rl_config.verifier_function": [name],
                "rl_config.verifier_weight": [1.0],
                **changes,
            },
        )
        data = read_data(config)
        try_all_rewards(config, data)
        prompts = data.train.prompts
        answered = Answered(
            prompts=prompts,
            groups=[*range(len(prompts))],
            token_ids=[[7] * len(response) for response in responses],
        )
        with RewardScorer(config.rl_config, None, reward_inputs(config, data)) as scorer:
            answers = [each.answer for each in prompts]
            scores = scorer.score(responses, answers, [each.source for each in prompts], answered)
        assert scores.failures == ()
        return scores.components[name]

    return rated


def written(folder: Path, rows: list[Mapping[str, Any]]) -> str:
    """Write rows as each of them does: verl in Parquet, and TRL's in lines of JSON."""
    if "reward_model" in rows[0]:
        pq.write_table(pa.Table.from_pylist([*rows]), folder / "rows.parquet")
        return str(folder / "rows.parquet")
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return str(folder / "rows.jsonl")


@pytest.mark.parametrize(
    ("function", "rows", "responses", "scores"),
    [
        ("near_20", SUMS, ["a" * 20, "a" * 17], (0.0, -3.0)),
        ("tagged", CHATS, ["<answer>2</answer>", "2"], (1.0, 0.0)),
        ("boxed", SUMS, [r"so \boxed{2}", r"so \boxed{5}"], (1.0, 0.0)),
        ("of_sums", SUMS, ["1+1=2", "1+1=2"], (1.0, None)),
        ("slow_judge", CHATS, ["four", "five5"], (4.0, 5.0)),
    ],
)
def test_trls_functions_rate_trls_rows(
    function: str, rows: list[Any], responses: list[str], scores: tuple[float, ...], rate: Rate
) -> None:
    assert rate(f"trl_rewards.py:{function}", rows, responses, **TRL) == scores


@pytest.mark.parametrize(
    ("function", "kwargs", "responses", "scores"),
    [
        ("compute_score", {}, ["so #### 2", "it is 4"], (1.0, 1.0)),
        ("compute_score", {}, ["it is 2", "it is 5"], (0.0, 0.0)),
        ("with_details", {}, ["2", "4"], (1.0, 2.0)),
        ("graded", {"format_score": 0.1}, ["3", "4"], (0.1, 1.0)),
        ("compute_scores", {}, ["2", "4"], (12.0, 5.0)),
    ],
)
def test_verls_functions_rate_verls_rows(
    function: str,
    kwargs: dict[str, Any],
    responses: list[str],
    scores: tuple[float, ...],
    rate: Rate,
) -> None:
    changes = {"rl_config.verifier_kwargs": [kwargs]}
    assert rate(f"verl_rewards.py:{function}", OF_VERL, responses, **changes) == scores


def test_a_factory_of_trl_is_made_with_its_arguments(rate: Rate) -> None:
    kwargs = [{"max_completion_len": 8, "soft_punish_cache": 4}]
    found = rate(
        "trl_rewards.py:get_soft_overlong_punishment",
        SUMS,
        ["x" * 6, "x" * 9],
        **TRL,
        **{"rl_config.verifier_kwargs": kwargs},
    )
    assert found == (-0.5, -1.0)
