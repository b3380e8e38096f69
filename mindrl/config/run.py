"""The whole configuration of a run, and the numbers that follow from it."""

from dataclasses import replace
from pathlib import Path

from pydantic.dataclasses import dataclass

from mindrl.config.actor import ActorConfig
from mindrl.config.generate import GenerateConfig
from mindrl.config.megatron_training import MegatronTrainingConfig
from mindrl.config.rl import RLConfig
from mindrl.config.section import SECTION


@dataclass(frozen=True, kw_only=True, config=SECTION)
class RunConfig:
    """The four sections of a run."""

    megatron_training: MegatronTrainingConfig
    """The run as a whole: steps, batch, data, precision."""
    actor_config: ActorConfig
    """The actor: model folder, training layout, optimizer."""
    rl_config: RLConfig
    """The algorithm, its rewards, the devices and what is watched."""
    generate_config: GenerateConfig
    """The rollout engine, its layout and its sampling."""

    @property
    def world_size(self) -> int:
        """Worker processes, one per device."""
        return self.rl_config.actor_resource.num_npus

    @property
    def ranks_per_train_replica(self) -> int:
        """Workers that hold one copy of the trained model together."""
        actor = self.actor_config
        return (
            actor.tensor_model_parallel_size
            * actor.context_parallel_size
            * actor.pipeline_model_parallel_size
        )

    @property
    def train_data_parallel_size(self) -> int:
        """Training replicas."""
        return self.world_size // self.ranks_per_train_replica

    @property
    def rollout_data_parallel_size(self) -> int:
        """Rollout replicas."""
        return self.world_size // self.generate_config.infer_tensor_parallel_size

    @property
    def sequences_per_step(self) -> int:
        """Sequences that one step samples and trains on."""
        return self.megatron_training.global_batch_size * self.rl_config.n_samples_per_prompt

    @property
    def sequences_per_update(self) -> int:
        """Sequences of one optimizer step, over all data-parallel ranks."""
        return self.rl_config.mini_batch_size * self.rl_config.n_samples_per_prompt

    @property
    def updates_per_step(self) -> int:
        """Optimizer steps that follow one rollout."""
        per_epoch = self.megatron_training.global_batch_size // self.rl_config.mini_batch_size
        return per_epoch * self.rl_config.epochs

    @property
    def total_updates(self) -> int:
        """Optimizer steps of the whole run."""
        return self.updates_per_step * self.megatron_training.train_iters

    @property
    def tokenizer_path(self) -> str:
        """Folder of the tokenizer."""
        return self.megatron_training.tokenizer_name_or_path or self.actor_config.load

    @property
    def reference_path(self) -> str:
        """Folder of the reference model."""
        return self.rl_config.integrated_mode_config.ref_model_load_path or self.actor_config.load

    @property
    def is_deterministic(self) -> bool:
        """Whether two runs must agree to the bit."""
        training = self.megatron_training
        return training.deterministic or training.npu_deterministic

    @property
    def uses_reference(self) -> bool:
        """Whether a reference model is loaded at all."""
        return self.rl_config.init_kl_coef > 0


def with_absolute_paths(config: RunConfig) -> RunConfig:
    """Return the configuration with model paths that mean the same from every working folder."""
    actor, rl = config.actor_config, config.rl_config
    integrated = rl.integrated_mode_config
    reference = integrated.ref_model_load_path
    return replace(
        config,
        actor_config=replace(actor, load=str(Path(actor.load).absolute())),
        rl_config=replace(
            rl,
            integrated_mode_config=replace(
                integrated,
                ref_model_load_path=None if reference is None else str(Path(reference).absolute()),
            ),
        ),
    )
