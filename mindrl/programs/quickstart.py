"""Make the tiny model and its data, then train on them: `mindrl quickstart`."""

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from mindrl.config.data import paths_of
from mindrl.config.run import RunConfig
from mindrl.config.validate import findings
from mindrl.launch.interrupts import signals_as_errors
from mindrl.observability.terminal import say
from mindrl.platform.device import PLATFORMS
from mindrl.platform.environment import become, take_on
from mindrl.preflight.checks import refuse
from mindrl.programs.arguments import Program, add_overrides
from mindrl.programs.compose import composed_config
from mindrl.programs.entry import START
from mindrl.programs.tiny import PICTURES, TOOLS, made_counter, made_model, made_tool_user
from mindrl.tiny.questions import write_questions
from mindrl.tiny.recipe import Family

_SEED = 1
FAMILIES: Mapping[str, Family] = {
    "dpo_tiny_cpu": "qwen2",
    "grpo_qwen35_moe_tiny_cpu": "qwen3_5_moe_text",
    "grpo_qwen35_tiny_cpu": "qwen3_5_text",
    "grpo_tiny_cpu": "qwen2",
    "grpo_tiny_moe_cpu": "qwen3_moe",
    "ppo_tiny_cpu": "qwen2",
    "reward_tiny_cpu": "qwen2",
    "sft_tiny_cpu": "qwen2",
    TOOLS: "qwen2",
}
"""Family of the model that a shipped configuration trains."""
_QUIET = {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0"}
"""Variables of runs that download nothing and send no usage statistics."""
_EXAMPLES = """\
examples:
  mindrl quickstart
  mindrl quickstart megatron_training.train_iters=10 megatron_training.seed=2
  mindrl quickstart --config-name ppo_tiny_cpu
  mindrl quickstart --config-name grpo_tools_tiny_cpu
  mindrl quickstart --config-name grpo_vision_tiny_cpu
"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    run = "the run: GRPO (with experts, linear attention, a tool or pictures), PPO, DPO, "
    run += "supervised fine-tuning or a reward model (default: grpo_tiny_cpu)"
    add("--config-name", choices=[*FAMILIES, *_OTHER_MODELS], default="grpo_tiny_cpu", help=run)
    add("--dry-run", action="store_true", help="make model and data, but only check the run")
    add_overrides(parser)


@signals_as_errors()
def _start(options: argparse.Namespace) -> int:
    take_on(_QUIET)
    name = options.config_name
    shipped = composed_config(name, ())
    overrides = [*_fewer_workers(shipped), *options.overrides]
    # Refuse a wrong key now: the model takes a minute.
    changed = composed_config(name, overrides)
    refuse(changed, findings(changed))
    _OTHER_MODELS.get(name, _make_additions)(name, shipped)
    dry = ["--dry-run"] if options.dry_run else []
    sys.stdout.flush()
    # In a process of its own: modules that Ray has loaded here keep the token of the other run.
    # -P: import nothing from the working folder, as the installed command does.
    command = [sys.executable, "-P", "-c", START, "train", "--config-name", name]
    become([*command, *dry, *overrides], {})


def _make_additions(name: str, shipped: RunConfig) -> None:
    """Make the additions, and the model of a configuration that adds."""
    data = Path(paths_of(shipped.megatron_training.data_path)[0]).parent
    say(*write_questions(data, seed=_SEED))
    model = Path(shipped.actor_config.load)
    if name == TOOLS:
        model = model.with_name("model")
    say(made_model(model, data, _SEED, FAMILIES[name]))
    if name == TOOLS:
        made_tool_user(model.parent, _SEED)


def _make_pictures(_: str, shipped: RunConfig) -> None:
    made_counter(Path(shipped.actor_config.load).parent, _SEED)


_OTHER_MODELS = {PICTURES: _make_pictures}
"""What makes the data and the model of a configuration without additions."""


def _fewer_workers(config: RunConfig) -> Iterator[str]:
    """Yield the override for a machine with fewer cores than the configuration has workers."""
    cores = PLATFORMS["cpu"].local_devices()
    if config.world_size > cores and not config.actor_config.backend:
        yield f"rl_config.actor_resource.num_npus={cores}"


PROGRAM = Program(
    about="Make two-digit additions and a small chat model in the working folder, in .cache/tiny, "
    "then train the model on the CPU and print how its accuracy changed. The first start takes two "
    "minutes; a model that is up to date is kept.",
    examples=_EXAMPLES,
    add_options=_add_options,
    run=_start,
)
