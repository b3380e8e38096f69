"""Each rule of `data_config`, and what is just inside the rule."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mindrl.config.changed import with_value
from mindrl.config.finding import Finding
from mindrl.config.run import RunConfig
from mindrl.config.validate import findings
from mindrl.errors import ConfigError

MakeConfig = Callable[..., RunConfig]
SETS = "data_config.eval_sets"
MATH = {"name": "math", "data_path": "math.jsonl", "samples": 8, "temperature": 0.6}


def found(run_config: MakeConfig, overrides: dict[str, Any]) -> list[Finding]:
    return findings(run_config(Path("model"), overrides))


def fields(run_config: MakeConfig, overrides: dict[str, Any]) -> list[str]:
    return [each.field for each in found(run_config, overrides)]


def test_a_set_with_a_name_and_sampling_of_its_own_is_legal(run_config: MakeConfig) -> None:
    assert fields(run_config, {SETS: [MATH], "data_config.best_by": "math"}) == []
    assert fields(run_config, {SETS: [MATH], "rl_config.test_freq": 10}) == []


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"temperature": 0.0}, "samples"),
        ({"data_path": "math.tsv"}, "data_path"),
        ({"max_tokens": 33}, "max_tokens"),
    ],
)
def test_a_set_is_refused_with_its_place_and_the_nearest_legal_value_helps(
    change: dict[str, Any], key: str, run_config: MakeConfig
) -> None:
    [finding] = found(run_config, {SETS: [MATH | {"name": "a"}, MATH | change]})
    assert finding.field == f"{SETS}.1.{key}"
    if finding.legal:
        config = run_config(Path("model"), {SETS: [MATH | {"name": "a"}, MATH | change]})
        assert findings(with_value(config, finding.field, finding.legal[0])) == []


def test_two_sets_of_one_name_are_refused(run_config: MakeConfig) -> None:
    assert fields(run_config, {SETS: [MATH, MATH]}) == [SETS]


def test_the_best_is_chosen_by_a_set_that_is_there(run_config: MakeConfig) -> None:
    [finding] = found(run_config, {SETS: [MATH], "data_config.best_by": "maths"})
    assert finding.legal == ("math", None)
    assert finding.doc == "docs/reference/config.md#data_config"


TRAIN, REWARDS, DATA = (
    "data_config.train_sets",
    "data_config.rewards",
    "megatron_training.data_path",
)
GSM8K = {"name": "gsm8k", "data_path": "gsm8k.jsonl"}
CODE = {"name": "code", "data_path": "code.jsonl", "weight": 2.0}
MIXED = {DATA: None, TRAIN: [GSM8K, CODE]}
OF_GSM8K = {"data_source": "gsm8k", "verifier_function": ["math_verify"], "verifier_weight": [1.0]}
OF_CODE = OF_GSM8K | {"data_source": "code"}


def test_several_sets_train_in_the_place_of_one_file(run_config: MakeConfig) -> None:
    assert fields(run_config, MIXED | {REWARDS: [OF_GSM8K, OF_CODE]}) == []
    assert fields(run_config, {DATA: None}) == [DATA]
    [both] = found(run_config, MIXED | {DATA: "a.jsonl"})
    assert (both.field, both.legal) == (DATA, (None,))


def test_a_weight_is_above_0(run_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match=r"train_sets.0.weight=0 must be greater than 0"):
        run_config(Path("model"), {TRAIN: [GSM8K | {"weight": 0}]})


def test_each_source_needs_a_reward_where_there_are_any(run_config: MakeConfig) -> None:
    [finding] = found(run_config, MIXED | {REWARDS: [OF_GSM8K, OF_CODE | {"data_source": "cod"}]})
    assert (finding.field, finding.legal) == (f"{TRAIN}.1.name", ("cod",))
    named = [GSM8K, CODE | {"data_source": "gsm8k"}]
    assert fields(run_config, {DATA: None, TRAIN: named, REWARDS: [OF_GSM8K]}) == []


def test_each_function_of_a_source_has_one_weight(run_config: MakeConfig) -> None:
    wrong = [OF_GSM8K | {"verifier_weight": [1.0, 2.0]}]
    [finding] = found(run_config, {REWARDS: wrong})
    config = run_config(Path("model"), {REWARDS: wrong})
    assert findings(with_value(config, finding.field, finding.legal[0])) == []


def test_a_column_orders_where_the_order_is_by_a_column(run_config: MakeConfig) -> None:
    by_column = {"data_config.order": "by_column"}
    assert fields(run_config, by_column) == ["data_config.order_column"]
    assert fields(run_config, by_column | {"data_config.order_column": "level"}) == []
    assert fields(run_config, {"data_config.order_stages": 3}) == ["data_config.order_stages"]


def test_pass_rates_have_a_column_and_some_between_them(run_config: MakeConfig) -> None:
    low, column = "data_config.pass_rate_low", "data_config.pass_rate_column"
    assert fields(run_config, {low: 0.1, column: "rate"}) == []
    assert fields(run_config, {low: 0.1}) == [column]
    assert fields(run_config, {low: 0.6, "data_config.pass_rate_high": 0.5, column: "rate"}) == [
        low
    ]


def test_sequences_that_are_carried_over_need_seeds_of_their_own(run_config: MakeConfig) -> None:
    unseeded = {"rl_config.reproducible_sampling": False}
    assert fields(run_config, unseeded) == []
    [finding] = found(run_config, unseeded | {"rl_config.partial_rollout": True})
    assert (finding.field, finding.legal) == ("rl_config.reproducible_sampling", (True,))


@pytest.mark.parametrize(
    ("sets", "text"),
    [
        (
            [{"name": "a b", "data_path": "x"}],
            (
                f'{SETS}.0.name="a b" must be a name of 1 to 100 letters, digits, dots, - '
                "and _ that starts with a letter or digit"
            ),
        ),
        ([MATH | {"sample": 2}], "did you mean data_config.eval_sets.0.samples?"),
        ([{"name": "a"}], f"{SETS}.0.data_path is missing and has no default"),
        (["math.jsonl"], f'{SETS}.0="math.jsonl" must be a section with keys'),
        ("math.jsonl", f'{SETS}="math.jsonl" must be a list'),
    ],
)
def test_what_is_no_list_of_sets_is_refused(
    sets: object, text: str, run_config: MakeConfig
) -> None:
    with pytest.raises(ConfigError) as error:
        run_config(Path("model"), {SETS: sets})
    assert text in str(error.value)


def test_a_path_of_data_is_one_or_several(run_config: MakeConfig) -> None:
    assert fields(run_config, {DATA: ["a.csv", "more", "b-*.parquet"]}) == []
    for wrong in ([], 5, ["a.csv", 5], [["a.csv"]]):
        with pytest.raises(ConfigError, match=r"data_path=.* must be a path or a list of paths"):
            run_config(Path("model"), {DATA: wrong})
    with pytest.raises(ConfigError, match="must be a path of at most 4000 bytes"):
        run_config(Path("model"), {DATA: ["a.csv", "x" * 5000]})


def test_each_reward_function_has_arguments_or_none_has(run_config: MakeConfig) -> None:
    key = "rl_config.verifier_kwargs"
    assert fields(run_config, {key: [{}, {"limit": 4}]}) == []
    assert fields(run_config, {key: [{}]}) == [key]
    again = {
        "data_source": "sums",
        "verifier_function": ["boxed_format"],
        "verifier_weight": [1.0],
        "verifier_kwargs": [{"limit": 5}],
    }
    assert fields(run_config, {key: [{}, {"limit": 4}], "data_config.rewards": [again]}) == [
        "data_config.rewards.0.verifier_kwargs"
    ]
