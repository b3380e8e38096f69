"""Rules of adapters; tests/golden/check.yaml has what they refuse."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mindrl.config.load import load_run_config
from mindrl.config.lora import LINEARS
from mindrl.config.run import RunConfig
from mindrl.config.text import nested
from mindrl.config.validate import findings, learning_warnings
from mindrl.errors import ConfigError

MakeConfig = Callable[..., RunConfig]
LORA, TARGETS = "actor_config.lora", "actor_config.lora.target_modules"
R = f"{LORA}.r"
ON = {R: 16, "actor_config.lr": 1e-4}
KNOWN = ", ".join(LINEARS)


@pytest.mark.parametrize("name", LINEARS)
def test_every_layer_that_may_have_them_is_taken(name: str, run_config: MakeConfig) -> None:
    assert findings(run_config(Path("model"), ON | {TARGETS: [name]})) == []


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("all-linear", ()),
        (["all-linear"], ()),
        ([], ()),
        ("q_proj", ("q_proj",)),
        (["q_proj"], ("q_proj",)),
    ],
)
def test_layers_are_written_as_peft_writes_them(
    given: Any, taken: tuple[str, ...], run_config: MakeConfig
) -> None:
    config = run_config(Path("model"), ON | {TARGETS: given})
    assert config.actor_config.lora.target_modules == taken


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({TARGETS: 3}, f"{TARGETS}=3 must be a list"),
        ({R: -1}, f"{R}=-1 must be greater than or equal to 0"),
        ({f"{LORA}.alpha": 0.0}, f"{LORA}.alpha=0.0 must be greater than 0"),
        (
            {f"{LORA}.lora_alpha": 8},
            f"{LORA}.lora_alpha is not a configuration key; did you mean {LORA}.alpha?",
        ),
        *(
            (
                {f"actor_config.lora_{name}": 8},
                f"actor_config.lora_{name} is not a configuration key; did you mean {LORA}.{name}?",
            )
            for name in ("r", "alpha", "target_modules")
        ),
        (
            {"critic_config.lora.r": 8},
            "critic_config.lora is not a configuration key; did you mean actor_config.lora?",
        ),
    ],
)
def test_what_is_no_value_or_no_key_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_run_config(nested({"actor_config.load": "model"} | given))
    assert message in str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("rank", "rate", "warned"),
    [(16, 1e-6, True), (16, 9.9e-6, True), (16, 1e-5, False), (16, 5e-3, False), (0, 1e-6, False)],
)
def test_a_rate_of_whole_weights_deserves_a_word(
    rank: int, rate: float, warned: bool, run_config: MakeConfig
) -> None:
    config = run_config(Path("model"), {R: rank, "actor_config.lr": rate})
    assert [each.field for each in learning_warnings(config)] == ["actor_config.lr"] * warned


@pytest.mark.parametrize(
    ("given", "is_refused"),
    [
        ({"rl_config.debug": "rollout_only"}, True),
        ({}, False),
        # The train job publishes weights with the adapters.
        ({"spool_config.folder": "spool", "spool_config.job": "rollout"}, False),
    ],
)
def test_adapters_that_nothing_adds_to_the_model_are_refused(
    given: dict[str, Any], is_refused: bool, run_config: MakeConfig
) -> None:
    config = run_config(Path("model"), {R: 16, f"{LORA}.load": "adapters"} | given)
    assert (f"{LORA}.load" in [each.field for each in findings(config)]) == is_refused
