"""Section `spool_config`: a train job and rollout jobs that communicate through a folder."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from mindrl.config.section import SECTION, PathText, PositiveInt, Seconds


@dataclass(frozen=True, kw_only=True, config=SECTION)
class SpoolConfig:
    """The shared folder of the jobs of `mindrl job`, and how they wait for each other."""

    folder: PathText | None = None
    """The spool: a folder that all its jobs can access. The first job creates it."""
    job: Literal["train", "rollout"] | None = None
    """Kind of this job; set by `mindrl job`."""
    publish_every: PositiveInt = 1
    """Steps between two versions of the weights that the train job publishes; at most
    `rl_config.max_staleness` + 1."""
    prompts_per_record: PositiveInt | None = None
    """Prompts that a rollout job completes at a time and writes as one record; must divide
    `megatron_training.global_batch_size`. None: all of a step. Several rollout jobs share the
    requests for a step."""
    max_records_mib: PositiveInt | None = None
    """Maximum MiB of records, above which rollout jobs wait; records that the train job waits for
    are still generated. None: the free disk space."""
    lease_seconds: Seconds = 60
    """Longest time without a sign of life from a job on another machine before it counts as dead;
    on the same machine an ended process is noticed immediately."""
    poll_seconds: Annotated[float, Field(gt=0.0, le=60.0)] = 0.5
    """Interval at which a waiting job checks the spool."""
    waits: bool = True
    """False ends a job, after writing its checkpoint, instead of waiting for the other one: they
    take turns on the same devices."""
