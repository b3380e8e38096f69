"""Section `spool_config`: two jobs, one that trains and one that rolls out, joined by a folder."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from mindrl.config.section import SECTION, PathText, PositiveInt, Seconds


@dataclass(frozen=True, kw_only=True, config=SECTION)
class SpoolConfig:
    """The folder that joins the jobs of `mindrl job`, and how they wait for each other."""

    folder: PathText | None = None
    """The spool: a folder that all jobs of it reach. The first job makes it."""
    job: Literal["train", "rollout"] | None = None
    """Which of them this is; `mindrl job` sets it."""
    publish_every: PositiveInt = 1
    """Steps between two versions of the weights that the train job puts into the spool; at most
    `rl_config.max_staleness` + 1."""
    prompts_per_record: PositiveInt | None = None
    """Prompts that a rollout job answers at a time, and writes as one record; they divide
    `megatron_training.global_batch_size`. None: all of a step. Several rollout jobs share a step by
    its records."""
    max_records_mib: PositiveInt | None = None
    """Most MiB of records, beyond which rollout jobs wait; what the train job waits for is drawn
    all the same. None: what the disk has."""
    lease_seconds: Seconds = 60
    """Longest time without a sign of life of a job on another machine, until it is taken for dead;
    on the same machine a process that is gone is seen at once."""
    poll_seconds: Annotated[float, Field(gt=0.0, le=60.0)] = 0.5
    """Between two looks into the spool of a job that waits."""
    waits: bool = True
    """False ends a job, its checkpoint written, where it would wait for the other: they take turns
    on the same devices."""
