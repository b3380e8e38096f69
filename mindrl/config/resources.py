"""The keys of `rl_config` that say on which devices each part of a run is."""

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from mindrl.config.section import SECTION, PathText


@dataclass(frozen=True, kw_only=True, config=SECTION)
class ActorResource:
    """Devices of the run, or of the actor, where other roles have others."""

    num_npus: Annotated[int, Field(ge=1, le=1 << 16)] = 1
    """Devices, one worker process on each. NPUs, GPUs or CPU slots by `rl_config.device`."""
    first_npu: Annotated[int, Field(ge=0, le=1 << 16)] = 0
    """The first of them, of all devices that train. Above 0 other roles have those before it."""
    npus_per_node: Annotated[int, Field(ge=1, le=1 << 16)] = 8
    """Devices of one machine: 8 on Atlas A2, 16 on Atlas A3. Each machine of the run gives as many.
    Weights are fetched from the own machine where they can be, and training groups stay inside
    one."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class RoleResource:
    """Devices of a role beside the actor, where they are not the actor's."""

    num_npus: Annotated[int, Field(ge=1, le=1 << 16)] | None = None
    """Devices, which may be some of the actor's, or others. None with `first_npu` null takes the
    actor's, else as many as the actor has."""
    first_npu: Annotated[int, Field(ge=0, le=1 << 16)] | None = None
    """The first of them, of all devices that train, from 0. None is the actor's first."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class RolloutResource:
    """Devices of the rollout, where it has its own."""

    num_npus: Annotated[int, Field(ge=1, le=1 << 16)] | None = None
    """Devices, with `rl_config.use_integrated_worker: false`; one engine lies on
    `generate_config.infer_tensor_parallel_size` of them. None: as many as `generate_config.backend`
    has ranks."""
    first: bool = False
    """They lie before the devices that train, and no longer behind them."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class IntegratedModeConfig:
    """Settings of the roles that share the actor's process."""

    ref_model_load_path: PathText | None = None
    """MindSpeed-RL's name for `ref_config.load`: either is enough."""
