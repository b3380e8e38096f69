"""Rules of adapters by themselves, each with its whole message; and what is just inside a rule."""

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


@pytest.mark.parametrize(
    ("given", "message", "legal"),
    [
        (
            {f"{LORA}.alpha": 32.0},
            f"{LORA}.alpha=32 has a meaning only with {R} of 1 or more, found 0",
            (16.0,),
        ),
        (
            {TARGETS: ["q_proj", "v_proj"]},
            f"{TARGETS}=q_proj,v_proj has a meaning only with {R} of 1 or more, found 0",
            ((),),
        ),
        (
            {f"{LORA}.load": "sft/adapter"},
            f"{LORA}.load=sft/adapter has a meaning only with {R} of 1 or more, found 0",
            (None,),
        ),
        (
            ON | {TARGETS: ["q_prj", "v_proj"]},
            f"{TARGETS}: q_prj is none of {KNOWN}; did you mean 'q_proj'?",
            (("q_proj", "v_proj"),),
        ),
        (
            ON | {TARGETS: ["o_proj", "linear_qkv", "k_proj"]},
            f"{TARGETS}: linear_qkv is a name of Megatron's; here it is q_proj,k_proj,v_proj",
            (("o_proj", "q_proj", "k_proj", "v_proj"),),
        ),
        (ON | {TARGETS: ["embeddings"]}, f"{TARGETS}: embeddings is none of {KNOWN}", ()),
        (
            ON | {"rl_config.ref_update_interval": 4, "rl_config.init_kl_coef": 0.1},
            (
                f"rl_config.ref_update_interval=4: with {R}=16 the reference stays what the "
                "adapters were put on"
            ),
            (0,),
        ),
        *(
            (
                ON | {"rl_config.actor_resource.num_npus": 2, "actor_config.backend": f"{name}:d2"},
                f"{R}=16 needs the engine megatron, and actor_config.backend names {name}",
                (0,),
            )
            for name in ("archon", "fsdp")
        ),
    ],
)
def test_adapters_that_cannot_be_made_are_refused(
    given: dict[str, Any], message: str, legal: tuple[Any, ...], run_config: MakeConfig
) -> None:
    (found,) = findings(run_config(Path("model"), given))
    assert (str(found), found.legal) == (message, legal)


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
    line = (
        f"actor_config.lr={rate:g}: with {R}={rank} adapters hardly learn; 1e-5 to 1e-3 are usual"
    )
    assert [str(each) for each in learning_warnings(config)] == ([line] if warned else [])
