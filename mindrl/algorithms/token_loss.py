"""Choose the policy loss of a run, and read its options.

Shapes: B sequences, T positions.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from typing import Any

import torch
from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import to_json
from torch import Tensor

from mindrl.algorithms.chosen_tokens import ChosenTokens, Terms, TokenSelection
from mindrl.algorithms.policy_loss_names import policy_loss_names
from mindrl.config.finding import did_you_mean
from mindrl.config.load import wrong_value
from mindrl.config.own_functions import named_function, trial
from mindrl.config.rl import RLConfig
from mindrl.config.section import SECTION, documented_fields
from mindrl.errors import ConfigError

_FIELD, _OPTIONS = "rl_config.policy_loss", "rl_config.policy_loss_options"


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLoss:
    """A policy loss with its options."""

    function: Callable[..., Tensor | Terms]
    options: object = None
    """Second argument of the function. None if it takes none."""

    @property
    def selection(self) -> TokenSelection | None:
        """The options, if they select tokens before an update."""
        return self.options if isinstance(self.options, TokenSelection) else None

    def __call__(self, chosen: ChosenTokens) -> dict[str, Tensor]:
        """Return the loss and the metrics of each token, [B, T] each.

        Raises:
            TypeError: The function returned neither a tensor nor `Terms`.
            ValueError: A result has another shape.
        """
        given = () if self.options is None else (self.options,)
        found = self.function(chosen, *given)
        if isinstance(found, Tensor):
            found = {"policy_loss": found}
        if not isinstance(found, Mapping) or "policy_loss" not in found:
            raise TypeError("a policy loss returns a tensor, or a mapping with policy_loss")
        for name, term_BT in found.items():
            if term_BT.shape != chosen.mask_BT.shape:
                shapes = f"{list(term_BT.shape)}; need {list(chosen.mask_BT.shape)}"
                raise ValueError(f"{name} has shape {shapes}")
        terms = {"clip_fraction": torch.zeros_like(chosen.mask_BT), **found}
        return terms if "ratio" in terms else {**terms, "ratio": chosen.ratio()}


def resolve_token_loss(rl: RLConfig) -> TokenLoss:
    """Return the policy loss of a run; your own function after a trial with two responses.

    Raises:
        ConfigError: It does not exist, an option is wrong, or it returns a wrong result.
    """
    name, names = rl.policy_loss, policy_loss_names()
    if name in names:
        function = getattr(import_module(f"mindrl.algorithms.policy_losses.{name}"), name)
    else:
        function = named_function(_FIELD, name, dict.fromkeys(names), "policy loss")
    loss = TokenLoss(function=function, options=_options(rl, _options_type(name, function)))
    if name not in names:
        if loss.selection is not None and rl.old_log_probs not in ("recompute", "from_rollout"):
            need = "must be recompute or from_rollout"
            need += f", because {_FIELD}={name} selects tokens before an update"
            raise ConfigError(f"rl_config.old_log_probs={rl.old_log_probs or 'null'} {need}")
        mask_BT = torch.arange(4) >= torch.tensor([[1], [3]])
        tried = ChosenTokens(
            logprobs_BT=(-1.0 * mask_BT).requires_grad_(),
            old_logprobs_BT=-1.0 * mask_BT,
            advantages_BT=torch.tensor([[1.0], [-1.0]]) * mask_BT,
            mask_BT=mask_BT,
            picked_BT=None if loss.selection is None else mask_BT,
        )
        with trial(_FIELD, name, "two responses"):
            torch.autograd.backward(loss(tried)["policy_loss"].sum())
    return loss


def _options_type(name: str, function: Callable[..., Any]) -> type[Any] | None:
    """Return the dataclass that annotates the second parameter; None without one."""
    try:
        parameters = [*inspect.signature(function, eval_str=True).parameters.values()]
    except (NameError, ValueError, TypeError) as error:
        raise ConfigError(f"{_FIELD}={name}: its parameters cannot be read: {error}") from error
    needed = [each for each in parameters[1:2] if each.default is each.empty]
    for each in parameters[1:2]:
        if isinstance(each.annotation, type) and is_dataclass(each.annotation):
            return each.annotation
    if needed:
        need = f"needs a dataclass as the annotation of its second parameter, {needed[0].name}"
        raise ConfigError(f"{_FIELD}={name} {need}, such as {needed[0].name}: Options")
    return None


def _options(rl: RLConfig, kind: type[Any] | None) -> object:
    """Build options: keys of `rl_config` by name, the others from `policy_loss_options`."""
    names = [] if kind is None else [each.name for each in fields(kind)]
    shared = documented_fields(RLConfig).keys() & {*names}
    given = rl.policy_loss_options or {}
    own = [name for name in names if name not in shared]
    if wrong := [*_wrong_keys(rl.policy_loss, given, own)]:
        raise ConfigError("\n".join(wrong))
    if kind is None:
        return None
    values = {name: getattr(rl, name) for name in shared} | given
    # A subclass, so that wrong types are refused in a plain dataclass too.
    strict = type(kind.__name__, (kind,), {"__pydantic_config__": SECTION})
    try:
        found: object = TypeAdapter(strict).validate_json(to_json(values))
    except PydanticUserError as error:
        raise ConfigError(f"{_FIELD}={rl.policy_loss}: {kind.__name__}: {error.message}") from error
    except ValidationError as error:
        lines = [_described(rl.policy_loss, each) for each in error.errors(include_url=False)]
        raise ConfigError("\n".join(lines)) from error
    return kind(**{name: getattr(found, name) for name in names})


def _wrong_keys(loss: str, given: Mapping[str, Any], legal: list[str]) -> Iterator[str]:
    has = f"{_FIELD}={loss} has {', '.join(legal) or 'none'}"
    for key in sorted(given.keys() - {*legal}):
        hint = did_you_mean(key, legal)
        if key in documented_fields(RLConfig):
            hint = f"; set rl_config.{key} itself"
        yield f"{_OPTIONS}.{key} is not an option; {has}{hint}"


def _described(loss: str, finding: Any) -> str:
    section = _OPTIONS
    if finding["loc"] and finding["loc"][0] in documented_fields(RLConfig):
        section = "rl_config"
    key = ".".join([section, *map(str, finding["loc"])])
    if finding["type"] in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return f"{key} is missing: {_FIELD}={loss} has no default for it"
    return wrong_value(key, finding)
