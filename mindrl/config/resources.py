"""Keys of `rl_config` for the devices of each part of a run."""

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from mindrl.config.section import SECTION, PathText

MOST_DEVICES = 1 << 16
"""Maximum number of devices of a run."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class ActorResource:
    """Devices of the run, or of the actor only if other roles have their own."""

    num_npus: Annotated[int, Field(ge=1, le=MOST_DEVICES)] = 1
    """Number of devices, with one worker process each. NPUs, GPUs or CPU slots, by
    `rl_config.device`."""
    first_npu: Annotated[int, Field(ge=0, le=MOST_DEVICES)] = 0
    """Index of the first, among all training devices. A value above 0 leaves those before it to
    other roles."""
    npus_per_node: Annotated[int, Field(ge=1, le=MOST_DEVICES)] = 8
    """Devices per machine: 8 on Atlas A2, 16 on Atlas A3. Each machine of the run provides as many.
    Weights are fetched from the same machine if possible, and training groups stay within one."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class RoleResource:
    """Devices of a role other than the actor, if they differ from the actor's."""

    num_npus: Annotated[int, Field(ge=1, le=MOST_DEVICES)] | None = None
    """Number of devices, which may include the actor's. None with `first_npu` null uses the actor's
    devices, otherwise as many as the actor has."""
    first_npu: Annotated[int, Field(ge=0, le=MOST_DEVICES)] | None = None
    """Index of the first, among all training devices, from 0. None is the actor's first."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class RolloutResource:
    """Devices of the rollout, if it has its own."""

    num_npus: Annotated[int, Field(ge=1, le=MOST_DEVICES)] | None = None
    """Number of devices, with `rl_config.use_integrated_worker: false`; one engine uses
    `generate_config.infer_tensor_parallel_size` times `infer_pipeline_parallel_size` of them. None:
    as many as `generate_config.backend` has ranks."""
    first: bool = False
    """Place them before the training devices instead of after them."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class IntegratedModeConfig:
    """Settings of the roles that share the actor's process."""

    ref_model_load_path: PathText | None = None
    """MindSpeed-RL's name for `ref_config.load`: either is enough."""
