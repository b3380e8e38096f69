"""A policy loss from a file of the user's own, with options of its own."""

import math
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from mindrl.algorithms.chosen_tokens import ChosenTokens
from mindrl.algorithms.token_loss import TokenLoss, resolve_token_loss
from mindrl.config.rl import RLConfig
from mindrl.errors import ConfigError

ROOT = Path(__file__).parents[3]


def token_loss(name: str, **keys: Any) -> TokenLoss:
    """Return a loss with these keys of `rl_config`."""
    return resolve_token_loss(RLConfig(mini_batch_size=1, policy_loss=name, **keys))


def test_a_loss_of_ones_own_is_tried_before_a_run(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "def squared(chosen):\n    return (chosen.logprobs_BT * chosen.advantages_BT) ** 2\n"
        "def detached(chosen):\n    return chosen.advantages_BT\n"
        "def short(chosen):\n    return chosen.logprobs_BT[:1]\n"
    )
    found = token_loss(f"{file}:squared")
    new_BT = torch.full((1, 2), 2.0)
    chosen = ChosenTokens(
        logprobs_BT=new_BT,
        old_logprobs_BT=new_BT,
        advantages_BT=new_BT,
        mask_BT=new_BT > 0,
    )
    assert found(chosen)["policy_loss"].tolist() == [[16.0, 16.0]]
    for name, words in (
        ("detached", "does not require grad"),
        ("short", r"\[1, 4\]; need \[2, 4\]"),
    ):
        with pytest.raises(ConfigError, match=words):
            token_loss(f"{file}:{name}")


OWN = """
from dataclasses import dataclass
from typing import Literal

import torch

from mindrl.algorithms.chosen_tokens import TokenSelection

@dataclass(frozen=True)
class Options:
    tau: float
    clip_ratio_high: float | None
    shape: Literal["square", "abs"] = "square"

def held(chosen, options: Options):
    away_BT = chosen.ratio() - 1
    away_BT = away_BT**2 if options.shape == "square" else away_BT.abs()
    return options.tau * away_BT - options.clip_ratio_high * chosen.advantages_BT * chosen.ratio()

def bare(chosen, options):
    return chosen.logprobs_BT

@dataclass(frozen=True)
class Bound:
    clip_ratio_high: float

def bound(chosen, options: Bound):
    return chosen.logprobs_BT

@dataclass(frozen=True)
class Typed:
    dtype: torch.dtype

def typed(chosen, options: Typed):
    return chosen.logprobs_BT

@dataclass(frozen=True)
class Selecting(TokenSelection):
    def select(self, update, old_logprobs_BT, seed):
        return update.response_mask_BT

def selecting(chosen, options: Selecting):
    return chosen.logprobs_BT
"""


def test_a_loss_of_ones_own_has_options_of_its_own_and_keys_of_rl_config(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    keys = {"policy_loss_options": {"tau": 0.5}, "clip_ratio_high": 0.25}
    found = token_loss(f"{file}:held", **keys)
    one_BT = torch.ones(1, 1, dtype=torch.float64)
    chosen = ChosenTokens(
        logprobs_BT=one_BT * math.log(3),
        old_logprobs_BT=one_BT * 0,
        advantages_BT=one_BT,
        mask_BT=one_BT > 0,
    )
    # A ratio of 3 and an advantage of 1.
    terms = found(chosen)
    assert terms["policy_loss"].item() == pytest.approx(0.5 * 2**2 - 0.25 * 3)
    assert (terms["ratio"].item(), terms["clip_fraction"].item()) == (pytest.approx(3), 0)
    keys = {"policy_loss_options": {"tau": 0.5, "shape": "abs"}, "clip_ratio_high": 0.25}
    assert token_loss(f"{file}:held", **keys)(chosen)["policy_loss"].item() == pytest.approx(0.25)


def test_the_losses_of_the_page_on_algorithms_work(tmp_path: Path) -> None:
    """At a ratio of 1.5, an advantage of 1: -1.5 + 0.5 * 0.25, and -1.5 + 0.1 * 0.3 ** 2."""
    page = (ROOT / "docs/how-to/add-an-algorithm.md").read_text("utf-8")
    shown = re.findall(r"(?:    # own/losses.py\n)((?:    .*\n|\n)+)", page)
    chosen = ChosenTokens(
        logprobs_BT=torch.tensor([[math.log(1.5)]]),
        old_logprobs_BT=torch.zeros(1, 1),
        advantages_BT=torch.ones(1, 1),
        mask_BT=torch.ones(1, 1) > 0,
    )
    losses = []
    for number, (code, options) in enumerate(zip(shown, (None, {"pull": 0.1}), strict=True)):
        file = tmp_path / f"own_{number}.py"
        file.write_text(textwrap.dedent(code))
        found = token_loss(f"{file}:squared_ratio", policy_loss_options=options)
        losses.append(found(chosen)["policy_loss"].item())
    assert losses == pytest.approx([-1.5 + 0.5 * 0.25, -1.5 + 0.1 * 0.3**2])


@pytest.mark.parametrize(
    ("name", "options", "error"),
    [
        (
            "held",
            {"tua": 1.0},
            "options.tua is not an option; .* has tau, shape",
        ),
        ("held", {"tua": 1.0}, "did you mean 'tau'"),
        ("held", None, "rl_config.policy_loss_options.tau is missing"),
        ("held", {"tau": "1"}, 'rl_config.policy_loss_options.tau="1" must be a valid number'),
        ("held", {"tau": 1.0, "shape": "cube"}, "shape=\"cube\" must be 'square' or 'abs'"),
        ("held", {"tau": 1.0, "clip_ratio_high": 1.0}, "set rl_config.clip_ratio_high itself"),
        ("bare", None, "needs a dataclass as the annotation of its second parameter, options"),
        ("bound", None, "rl_config.clip_ratio_high=null must be a valid number"),
        ("typed", {"dtype": "bf16"}, "Typed: Unable to generate pydantic-core schema"),
        ("selecting", None, "rl_config.old_log_probs=null must be recompute"),
        ("plain", {"tau": 1.0}, "rl_config.policy_loss=plain has none"),
    ],
)
def test_an_option_that_does_not_fit_is_named_with_those_that_do(
    name: str, options: dict[str, Any] | None, error: str, tmp_path: Path
) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    with pytest.raises(ConfigError, match=error):
        token_loss(name if name == "plain" else f"{file}:{name}", policy_loss_options=options)
