"""Section `megatron_training`: the run as a whole, its data and its numerics."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from mindrl.config.data import DataPath
from mindrl.config.section import (
    SECTION,
    WEEK_SECONDS,
    Count,
    PathText,
    PositiveInt,
    Sequences,
    Tokens,
)

PLAIN = "plain"
"""In the place of a chat template: none."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class MegatronTrainingConfig:
    """The run as a whole: steps, batch, data, precision."""

    train_iters: PositiveInt
    """Steps of the run. One step is one rollout of `global_batch_size` prompts and its updates."""
    global_batch_size: Sequences
    """Prompts per step, each sampled `rl_config.n_samples_per_prompt` times."""
    seq_length: Tokens
    """Longest sequence in tokens, prompt and response together, that the trainer accepts."""
    data_path: DataPath | None = None
    """Training prompts: a `.jsonl`, `.json`, `.parquet` or `.csv` file, a folder of them, a pattern
    such as `data/train-*.parquet`, or a list of these. None where `data_config.train_sets` has
    them."""
    test_data_path: DataPath | None = None
    """Held-out prompts for evaluation, in the same forms. None evaluates nothing, unless
    `data_config` says what."""
    prompt_column: str = "messages"
    """Column of the prompt: a list of chat messages, or a string that becomes one user message.
    Dots lead into a column with columns of its own."""
    answer_column: str | None = "answer"
    """Column of the reference answer; dots as above, `reward_model.ground_truth`. The tail behind
    `####` counts where there is one (GSM8K). None has rewards that compare with nothing."""
    system_prompt: str | None = None
    """Put before every prompt as a system message. None adds nothing."""
    tokenizer_name_or_path: PathText | None = None
    """Folder with the tokenizer and its chat template. None takes `actor_config.load`."""
    chat_template: PathText | None = None
    """File with a Jinja chat template in the place of the tokenizer's own. `plain` takes prompts as
    they stand, without any template, as base models read them. None is the tokenizer's own."""
    allow_download: bool = False
    """Models and data by their names on the Hugging Face hub, `Qwen/Qwen2.5-0.5B` or
    `openai/gsm8k/main/train*`, are looked for in the hub's cache; this downloads what it lacks."""
    no_shuffle: bool = False
    """True reads the prompts in file order; False draws a fresh permutation per epoch."""
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] = 1234
    """Seed of data order, sampling and initialisation. Equal seeds give equal runs."""
    deterministic: bool = False
    """Two runs agree to the bit: deterministic kernels and collectives, at some cost in speed."""
    npu_deterministic: bool = False
    """MindSpeed-RL's name for `deterministic`: either is enough, on any device."""
    bf16: bool = True
    """True trains in bfloat16 with float32 main weights; False trains in float32."""
    use_distributed_optimizer: bool = True
    """Shard optimizer state over the data-parallel ranks (ZeRO-1)."""
    sequence_parallel: bool = False
    """Split activations along the sequence between the tensor-parallel regions, in every role
    whose tensor-parallel size is above 1."""
    own_models: tuple[str, ...] = ()
    """Specs of models of your own, which `archon:` trains: `package.module:spec` or
    `path/to/file.py:spec`. Each serves the models of every role whose config.json has its
    `model_type`, before the families that mindrl knows; behind those come the specs of installed
    packages."""
    distributed_backend: Literal["auto", "hccl", "nccl", "gloo"] = "auto"
    """Backend of the process groups. `auto` takes the platform's own."""
    distributed_timeout_minutes: Annotated[int, Field(ge=1, le=WEEK_SECONDS // 60)] = 10
    """A collective of the trainer that lasts longer ends the run with an error; the engine is told
    the same limit."""
    save_interval: Count = 0
    """Write a checkpoint every so many steps, from which the run can go on, and one at the end or
    when the run is stopped. 0 writes none."""
    export_interval: Count | None = None
    """Export the model as a Hugging Face folder every so many steps. 0 exports only at the end, or
    when the run is stopped; None takes `save_interval`. A multiple of `rl_config.test_freq` has
    every export evaluated, and the best one kept."""
    keep_last: PositiveInt = 2
    """Checkpoints that stay: the newest so many."""
    keep_every: Count = 0
    """Those of steps that are multiples of it stay too. 0 keeps none besides `keep_last`."""
    keep_best: bool = False
    """That of the step with the best evaluation so far stays too, of the steps that have both."""
    on_save_failure: Literal["stop", "skip"] = "stop"
    """A checkpoint that cannot be written, on a full disk for instance, ends the run with `stop`,
    and is given up with `skip`: told once, counted, and the one before stays."""
    keep_rollouts: Count = 0
    """Keep all responses of the last so many steps, with tokens, log-probs and rewards, as Parquet
    files. 0 keeps none."""
    resume: PathText = "auto"
    """A run whose folder holds checkpoints goes on from the newest whole one with `auto`, and is
    refused with `never`. Else a folder: a run whose own holds none yet goes on from the newest
    whole checkpoint of that run, or from that one, `.../checkpoints/step-00000020`."""
    resume_allow: tuple[str, ...] = ()
    """Keys that may differ from the run that is resumed although they change what it computes."""
    finetune: bool = False
    """Of the folder that `resume` names take weights alone: steps, data order, optimizer and
    schedule begin anew."""
    no_load_optim: bool = False
    """Of that folder take no optimizer: moments and learning-rate schedule begin anew."""
    no_load_rng: bool = False
    """Of that folder take no random state: that of `rl_config.shuffle_mini_batch` begins anew. All
    others follow from seed and step."""
    on_nonfinite: Literal["skip", "stop"] = "skip"
    """What a NaN or Inf does. `skip`: no rank takes an update that it would reach; the update is
    counted, and the run goes on until a model takes none in 3 steps. `stop`: nor is another update
    taken behind it, and the run ends with that step, its checkpoint and model written."""

    @property
    def takes_plain_text(self) -> bool:
        """Whether prompts go to the model as they stand."""
        return self.chat_template == PLAIN

    @property
    def exports_every(self) -> int:
        """Steps between two exports; 0 exports at the end alone."""
        return self.save_interval if self.export_interval is None else self.export_interval

    @property
    def begins_from(self) -> str | None:
        """The folder of another run that this one begins from; None where it names none."""
        return None if self.resume in ("auto", "never") else self.resume

    @property
    def is_deterministic(self) -> bool:
        """Whether two runs must agree to the bit."""
        return self.deterministic or self.npu_deterministic
