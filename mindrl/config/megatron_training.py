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
    SequenceCount,
    TokenCount,
)

PLAIN = "plain"
"""Value of `chat_template` for no template."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class MegatronTrainingConfig:
    """The run as a whole: steps, batch, data, precision."""

    train_iters: PositiveInt
    """Steps of the run. One step is one rollout of `global_batch_size` prompts and its updates."""
    global_batch_size: SequenceCount
    """Prompts per step, each sampled `rl_config.n_samples_per_prompt` times."""
    seq_length: TokenCount
    """Longest sequence in tokens, prompt and response together, that the trainer accepts."""
    data_path: DataPath | None = None
    """Training prompts: a `.jsonl`, `.json`, `.parquet` or `.csv` file, a folder of them, a pattern
    such as `data/train-*.parquet`, or a list of these. None with `data_config.train_sets`."""
    test_data_path: DataPath | None = None
    """Held-out prompts for evaluation, in the same forms. None evaluates nothing, unless
    `data_config` defines an evaluation."""
    prompt_column: str = "messages"
    """Column of the prompt: a list of chat messages, or a string that becomes one user message.
    Dots select nested columns."""
    answer_column: str | None = "answer"
    """Column of the reference answer; dots as above, `reward_model.ground_truth`. Only the text
    after `####` counts if there is one (GSM8K). None is for rewards without a reference."""
    system_prompt: str | None = None
    """System message put before every prompt. None adds nothing."""
    tokenizer_name_or_path: PathText | None = None
    """Folder with the tokenizer and its chat template. None uses `actor_config.load`."""
    chat_template: PathText | None = None
    """File with a Jinja chat template that replaces the tokenizer's. `plain` uses prompts
    unchanged, without any template, as for base models. None uses the tokenizer's own."""
    allow_download: bool = False
    """Download models and data that the Hugging Face hub's cache lacks. Their names, such as
    `Qwen/Qwen2.5-0.5B` or `openai/gsm8k/main/train*`, are always looked up in the cache."""
    no_shuffle: bool = False
    """True reads the prompts in file order; False uses a new permutation per epoch."""
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] = 1234
    """Seed of data order, sampling and initialisation. Equal seeds give equal runs."""
    deterministic: bool = False
    """Two runs agree bitwise: deterministic kernels and collectives, at some cost in speed."""
    npu_deterministic: bool = False
    """MindSpeed-RL's name for `deterministic`: either is enough, on any device."""
    bf16: bool = True
    """True trains in bfloat16 with float32 main weights; False trains in float32."""
    use_distributed_optimizer: bool = True
    """Shard optimizer state over the data-parallel ranks (ZeRO-1)."""
    overlap_grad_reduce: bool = False
    """Reduce gradients over the data-parallel ranks while the last micro-batch's backward pass
    still computes others, a bucket at a time. For `megatron:` backends, in every trained role."""
    overlap_param_gather: bool = False
    """Gather updated weights while the next update's forward pass runs; what remains is gathered
    before another phase of the device begins. Needs `overlap_grad_reduce` and
    `use_distributed_optimizer`."""
    ddp_bucket_size: Annotated[int, Field(ge=1, le=1 << 40)] | None = None
    """Parameters in a bucket of `overlap_grad_reduce`, or more. None uses 40 million, or a million
    for each data-parallel rank if that is more. Stages after the first have a single bucket."""
    sequence_parallel: bool = False
    """Split activations along the sequence between the tensor-parallel regions, in every role with
    a tensor-parallel size above 1."""
    use_fused_rmsnorm: bool = False
    """Compute root-mean-square norms by one kernel of an NPU. Like the two keys below it is for
    `megatron:` backends and has no effect on other devices; `mindrl check` notes that."""
    use_fused_swiglu: bool = False
    """Compute the gated activation of MLPs by MindSpeed's fused kernel on NPUs."""
    use_fused_rotary_pos_emb: bool = False
    """Rotate queries and keys by MindSpeed's fused kernel on NPUs, which MindSpeed compiles when it
    is first used."""
    own_models: tuple[str, ...] = ()
    """Specs of your own models, trained by `archon:`: `package.module:spec` or
    `path/to/file.py:spec`. Each is used for every role whose config.json has its `model_type`. They
    take precedence over mindrl's own families, which take precedence over specs of installed
    packages."""
    distributed_backend: Literal["auto", "hccl", "nccl", "gloo"] = "auto"
    """Backend of the process groups. `auto` uses the platform's own."""
    distributed_timeout_minutes: Annotated[int, Field(ge=1, le=WEEK_SECONDS // 60)] = 10
    """Time limit of the trainer's collectives, after which the run ends with an error; the engine
    gets the same limit."""
    save_interval: Count = 0
    """Steps between two checkpoints, from which the run can resume; one is also written at the end
    or when the run is stopped. 0 writes none."""
    export_interval: Count | None = None
    """Steps between two exports of the model as a Hugging Face folder. 0 exports only at the end,
    or when the run is stopped; None uses `save_interval`. With a multiple of `rl_config.test_freq`
    every export is evaluated, and the best one kept."""
    keep_last: PositiveInt = 2
    """Number of newest checkpoints that are kept."""
    keep_every: Count = 0
    """Also keep checkpoints of steps that are multiples of this. 0 keeps only `keep_last`."""
    keep_best: bool = False
    """Also keep the checkpoint with the best evaluation so far, among steps that have both."""
    on_save_failure: Literal["stop", "skip"] = "stop"
    """What to do if a checkpoint cannot be written, for example on a full disk: `stop` ends the
    run, `skip` reports and counts it once, and keeps the previous checkpoint."""
    keep_rollouts: Count = 0
    """Number of last steps of which all responses are kept, with tokens, log-probs and rewards, as
    Parquet files. 0 keeps none."""
    resume: PathText = "auto"
    """`auto` resumes from the newest complete checkpoint in the run's own folder; `never` refuses a
    folder with checkpoints. Otherwise a folder: a run without its own checkpoints resumes from that
    run's newest complete checkpoint, or from the given one, `.../checkpoints/step-00000020`."""
    resume_allow: tuple[str, ...] = ()
    """Keys that may differ from the resumed run although they change its results."""
    finetune: bool = False
    """Load only the weights from the folder in `resume`: steps, data order, optimizer and schedule
    start from the beginning."""
    no_load_optim: bool = False
    """Do not load the optimizer from that folder: moments and learning-rate schedule start from the
    beginning."""
    no_load_rng: bool = False
    """Do not load the random state of `rl_config.shuffle_mini_batch` from that folder. All other
    random states follow from seed and step."""
    on_nonfinite: Literal["skip", "stop"] = "skip"
    """What to do on NaN or Inf. `skip`: all ranks skip the affected update; it is counted, and the
    run continues until all updates of a model were skipped in 3 steps. `stop`: no further update is
    made, and the run ends with that step, after writing checkpoint and model."""

    def bucket_size(self, replicas: int) -> int | None:
        """Return the parameters in a gradient bucket; None for a single bucket."""
        if not self.overlap_grad_reduce:
            return None
        return self.ddp_bucket_size or max(40_000_000, 1_000_000 * replicas)

    @property
    def takes_plain_text(self) -> bool:
        """Whether prompts are passed to the model unchanged."""
        return self.chat_template == PLAIN

    @property
    def exports_every(self) -> int:
        """Steps between two exports; 0 exports only at the end."""
        return self.save_interval if self.export_interval is None else self.export_interval

    @property
    def begins_from(self) -> str | None:
        """Folder of another run to start from; None if not set."""
        return None if self.resume in ("auto", "never") else self.resume

    @property
    def is_deterministic(self) -> bool:
        """Whether two runs must agree bitwise."""
        return self.deterministic or self.npu_deterministic
