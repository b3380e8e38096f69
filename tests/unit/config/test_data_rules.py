"""Each rule of `data_config`, with its whole message; and what is just inside the rule."""

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


def texts(run_config: MakeConfig, overrides: dict[str, Any]) -> list[str]:
    return [str(each) for each in found(run_config, overrides)]


def test_a_set_with_a_name_and_sampling_of_its_own_is_legal(run_config: MakeConfig) -> None:
    assert texts(run_config, {SETS: [MATH], "data_config.best_by": "math"}) == []
    assert texts(run_config, {SETS: [MATH], "rl_config.test_freq": 10}) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"temperature": 0.0},
            (
                "samples=8 of math needs a temperature above 0, found 0, at which all answers to a "
                "prompt are one"
            ),
        ),
        (
            {"data_path": "math.tsv"},
            "data_path=math.tsv must end in .jsonl, .json, .parquet or .csv, or be a folder",
        ),
        (
            {"max_tokens": 33},
            (
                "max_tokens=33 plus rl_config.max_prompt_length=32 is above "
                "generate_config.max_model_len=64; needs 32 or less"
            ),
        ),
    ],
)
def test_a_set_is_refused_with_its_place_and_the_nearest_legal_value_helps(
    change: dict[str, Any], text: str, run_config: MakeConfig
) -> None:
    [finding] = found(run_config, {SETS: [MATH | {"name": "a"}, MATH | change]})
    assert str(finding) == f"{SETS}.1.{text}"
    if finding.legal:
        config = run_config(Path("model"), {SETS: [MATH | {"name": "a"}, MATH | change]})
        assert findings(with_value(config, finding.field, finding.legal[0])) == []


def test_two_sets_of_one_name_are_refused(run_config: MakeConfig) -> None:
    assert texts(run_config, {SETS: [MATH, MATH]}) == [
        f"{SETS} has math more than once; each set needs a name of its own"
    ]


def test_the_best_is_chosen_by_a_set_that_is_there(run_config: MakeConfig) -> None:
    [finding] = found(run_config, {SETS: [MATH], "data_config.best_by": "maths"})
    assert str(finding) == (
        "data_config.best_by=maths is no set of data_config.eval_sets; there is math"
    )
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
    assert texts(run_config, MIXED | {REWARDS: [OF_GSM8K, OF_CODE]}) == []
    assert texts(run_config, {DATA: None}) == [
        f"{DATA} is missing: name a file, or sets in {TRAIN}"
    ]
    [both] = found(run_config, MIXED | {DATA: "a.jsonl"})
    assert str(both) == f"{DATA}=a.jsonl and {TRAIN} both say what trains; give one of them"
    assert both.legal == (None,)


def test_a_weight_is_above_0(run_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match=r"train_sets.0.weight=0 must be greater than 0"):
        run_config(Path("model"), {TRAIN: [GSM8K | {"weight": 0}]})


def test_each_source_needs_a_reward_where_there_are_any(run_config: MakeConfig) -> None:
    [finding] = found(run_config, MIXED | {REWARDS: [OF_GSM8K, OF_CODE | {"data_source": "cod"}]})
    assert str(finding) == (
        f"{TRAIN}.1.name=code is no data_source of {REWARDS}; there is gsm8k, cod"
    )
    assert finding.legal == ("cod",)
    named = [GSM8K, CODE | {"data_source": "gsm8k"}]
    assert texts(run_config, {DATA: None, TRAIN: named, REWARDS: [OF_GSM8K]}) == []


def test_each_function_of_a_source_has_one_weight(run_config: MakeConfig) -> None:
    wrong = [OF_GSM8K | {"verifier_weight": [1.0, 2.0]}]
    [finding] = found(run_config, {REWARDS: wrong})
    assert str(finding) == (
        f"{REWARDS}.0.verifier_weight of gsm8k has 2 entries and verifier_function has 1; needed "
        "are functions, each once, and a weight for each"
    )
    config = run_config(Path("model"), {REWARDS: wrong})
    assert findings(with_value(config, finding.field, finding.legal[0])) == []


def test_a_column_orders_where_the_order_is_by_a_column(run_config: MakeConfig) -> None:
    by_column = {"data_config.order": "by_column"}
    assert texts(run_config, by_column) == [
        "data_config.order_column is missing: data_config.order=by_column needs a column of numbers"
    ]
    assert texts(run_config, by_column | {"data_config.order_column": "level"}) == []
    assert texts(run_config, {"data_config.order_stages": 3}) == [
        (
            "data_config.order_stages=3 has a meaning only with data_config.order=by_column, found "
            "null"
        )
    ]


def test_pass_rates_have_a_column_and_some_between_them(run_config: MakeConfig) -> None:
    low, column = "data_config.pass_rate_low", "data_config.pass_rate_column"
    assert texts(run_config, {low: 0.1, column: "rate"}) == []
    assert texts(run_config, {low: 0.1}) == [
        (f"{column} is missing: {low} and pass_rate_high need a column of pass rates")
    ]
    assert texts(run_config, {low: 0.6, "data_config.pass_rate_high": 0.5, column: "rate"}) == [
        f"{low}=0.6 must not be above data_config.pass_rate_high=0.5"
    ]


def test_sequences_that_are_carried_over_need_seeds_of_their_own(run_config: MakeConfig) -> None:
    unseeded = {"rl_config.reproducible_sampling": False}
    assert texts(run_config, unseeded) == []
    [finding] = found(run_config, unseeded | {"rl_config.partial_rollout": True})
    assert str(finding) == (
        "rl_config.reproducible_sampling=false: with rl_config.partial_rollout=true each sequence "
        "goes on by a seed of its own"
    )
    assert finding.legal == (True,)


@pytest.mark.parametrize(
    ("sets", "text"),
    [
        (
            [{"name": "a b", "data_path": "x"}],
            (
                f'{SETS}.0.name="a b" must be a name: 1 to 100 letters, digits, dots, - and _, the '
                "first no sign"
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
    assert texts(run_config, {DATA: ["a.csv", "more", "b-*.parquet"]}) == []
    for wrong in ([], 5, ["a.csv", 5], [["a.csv"]]):
        with pytest.raises(ConfigError, match=r"data_path=.* must be a path, or a list of paths"):
            run_config(Path("model"), {DATA: wrong})
    with pytest.raises(ConfigError, match="must be a path of at most 4000 bytes"):
        run_config(Path("model"), {DATA: ["a.csv", "x" * 5000]})


def test_each_reward_function_has_arguments_or_none_has(run_config: MakeConfig) -> None:
    key = "rl_config.verifier_kwargs"
    assert texts(run_config, {key: [{}, {"limit": 4}]}) == []
    assert texts(run_config, {key: [{}]}) == [
        (
            f"{key} has 1 entries and verifier_function has 2; each function needs one, {{}} where "
            "it has no arguments"
        )
    ]
    again = {
        "data_source": "sums",
        "verifier_function": ["boxed_format"],
        "verifier_weight": [1.0],
        "verifier_kwargs": [{"limit": 5}],
    }
    assert texts(run_config, {key: [{}, {"limit": 4}], "data_config.rewards": [again]}) == [
        "data_config.rewards.0.verifier_kwargs of boxed_format must be what it is elsewhere"
    ]
