"""Rules of low-rank adapters."""

from collections.abc import Iterator
from difflib import get_close_matches

from mindrl.config.backends import TRAINING_BACKEND
from mindrl.config.finding import Finding, broken, did_you_mean, must_be_default
from mindrl.config.lora import LINEARS, OF_MEGATRON
from mindrl.config.run import RunConfig

SECTION = "actor_config.lora"
_LOW_RATE = 1e-5


def adapter_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield what prevents the adapters of a run, independently of its model."""
    lora = config.actor_config.lora
    if not lora.r:
        need = f"has an effect only with {SECTION}.r of 1 or more, found 0"
        yield from must_be_default(SECTION, lora, need)
        return
    backend = config.training_backend("actor")
    if lora.dropout and backend != TRAINING_BACKEND:
        need = f"needs the engine {TRAINING_BACKEND}, found {backend} in actor_config.backend"
        yield broken(f"{SECTION}.dropout", lora.dropout, need, 0.0)
    yield from _unknown_layers(lora.target_modules)
    if lora.load is not None and not config.learns and config.spool_config.job is None:
        need = "has no effect without training: merge the adapters with peft, and load the result"
        yield broken(f"{SECTION}.load", lora.load, need, None)
    interval = config.rl_config.ref_update_interval
    if interval:
        need = (
            f": must be 0 with {SECTION}.r={lora.r}, where the reference is the model without "
            "adapters"
        )
        yield broken("rl_config.ref_update_interval", interval, need, 0)


def adapter_warnings(config: RunConfig) -> Iterator[Finding]:
    """Yield a warning if adapters have a learning rate for full fine-tuning."""
    actor = config.actor_config
    if actor.lora.r and actor.lr < _LOW_RATE:
        need = (
            f": too low to train adapters ({SECTION}.r={actor.lora.r}); usual values are 1e-5 "
            "to 1e-3"
        )
        yield broken("actor_config.lr", actor.lr, need)


def _unknown_layers(names: tuple[str, ...]) -> Iterator[Finding]:
    """Yield unknown target layers, with suggestions."""
    field = f"{SECTION}.target_modules"
    for name in names:
        if name in LINEARS:
            continue
        meant = OF_MEGATRON.get(name) or get_close_matches(name, LINEARS, n=1)
        text = (
            f"{field}: unknown layer {name}; known layers: "
            f"{', '.join(LINEARS)}{did_you_mean(name, LINEARS)}"
        )
        if name in OF_MEGATRON:
            text = f"{field}: {name} is Megatron's name; write {','.join(meant)}"
        legal = [each for given in names for each in (meant if given == name else (given,))]
        yield Finding(text, field, names, (tuple(dict.fromkeys(legal)),) if meant else ())
