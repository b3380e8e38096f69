"""Predicted memory of a run's pictures, on devices and on the host. Needs no torch."""

from mindrl.config.layout_keys import Role
from mindrl.memory.pictures import (
    LARGEST_TOKENS,
    PictureBytes,
    TowerBytes,
    feature_bytes,
    tower_bytes,
)
from mindrl.models.other_family import VisionPart
from mindrl.observability.units import MIB
from mindrl.preflight.run_shardings import RunPlan


def picture_bytes(plan: RunPlan) -> PictureBytes:
    """Return the most bytes that the run keeps of pictures; 0 without a vision tower.

    The engine's features fill at most as many tokens as it computes at a time, or those of one
    picture. Each tower of a worker, and its engine, has pictures of its own on the host.
    """
    config, part = plan.config, _tower_of(plan, "actor")
    if part is None:
        return PictureBytes()
    generate = config.generate_config
    tokens = max(generate.max_num_batched_tokens or 0, LARGEST_TOKENS)
    mib = sum(copies * config.value_of(key) for key, copies in picture_copies(plan).items())
    engine = tokens * feature_bytes(part.sizes, generate.dtype) if config.rolls_out else 0
    return PictureBytes(engine=engine, host=mib * MIB)


def picture_copies(plan: RunPlan) -> dict[str, int]:
    """Return how many times a worker's host keeps the MiB of each key; empty without a tower."""
    config, part = plan.config, _tower_of(plan, "actor")
    if part is None:
        return {}
    towers = sum(_tower_of(plan, role) is not None for role in config.roles)
    copies = {"cache_mib": towers + config.rolls_out, "features_mib": int(part.is_frozen)}
    return {f"data_config.images.{name}": number for name, number in copies.items() if number}


def tower_estimate(plan: RunPlan, role: Role, tokens: int, *, learns: bool) -> TowerBytes:
    """Estimate the bytes of a role's tower in a micro-batch of `tokens` tokens.

    Its sequences have different prompts, each with the maximum number of pictures.
    """
    part = _tower_of(plan, role)
    if part is None:
        return TowerBytes(kept=0, most=0)
    learning = plan.config.learning(role) if learns and not part.is_frozen else None
    shown = tokens * min(1.0, picture_tokens(plan, part) / _longest(plan))
    return tower_bytes(part.sizes, round(shown), plan.train_dtype, learning)


def picture_tokens(plan: RunPlan, part: VisionPart) -> int:
    """Return the most tokens of pictures in a sequence."""
    images, side = plan.config.data_config.images, part.sizes.patch * part.sizes.merge
    of_pictures = images.max_per_prompt * -(-images.max_pixels // side**2)
    config = plan.config
    if config.environment_config is not None:
        return min(of_pictures, _longest(plan))
    # Rows with answers are as long as a sequence may be.
    rl, training = config.rl_config, config.megatron_training
    longest = rl.max_prompt_length if config.rolls_out else training.seq_length
    return min(of_pictures, longest)


def _longest(plan: RunPlan) -> int:
    config = plan.config
    longest = config.rl_config.max_prompt_length + config.generate_config.sampling_config.max_tokens
    return min(config.megatron_training.seq_length, longest)


def _tower_of(plan: RunPlan, role: Role) -> VisionPart | None:
    return plan.models[role].vision if role in plan.models else None
