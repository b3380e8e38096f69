"""Make the data and the model of the first run: `mindrl tiny`."""

import argparse
import re
import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from mindrl.config.section_types import SectionArguments
from mindrl.launch.interrupts import signals_as_errors
from mindrl.observability.terminal import say
from mindrl.preflight.shipped import config_folder
from mindrl.programs.arguments import Program, refuse_unless
from mindrl.programs.compose import override
from mindrl.programs.python_run import train
from mindrl.programs.train import require_engines
from mindrl.tiny.making import Teacher, make_model
from mindrl.tiny.questions import write_questions
from mindrl.tiny.recipe import UPDATES, Family, Recipe, TaughtRow
from mindrl.tiny.tool_user import make_tool_user
from mindrl.tiny.vision.counter import make_counter
from mindrl.tiny.vision.habits import COUNTING_FAMILIES, VisionFamily
from mindrl.tiny.vision.squares import write_squares

_TEACHING = "sft_tiny_cpu"
FAMILY: Family = "qwen2"
"""Family of the network without `--family`."""
_TRAINING: dict[Family, str] = {
    "qwen2": "grpo_tiny_cpu",
    "qwen3_moe": "grpo_tiny_moe_cpu",
    "qwen3_5_text": "grpo_qwen35_tiny_cpu",
    "qwen3_5_moe_text": "grpo_qwen35_moe_tiny_cpu",
}
"""Configuration that trains a model, by its family."""
TOOLS = "grpo_tools_tiny_cpu"
"""Configuration that trains the tool user."""
PICTURES = "grpo_vision_tiny_cpu"
"""Configuration that trains the counter of squares."""
_EXAMPLES = """\
examples:
  mindrl tiny --output tiny
  mindrl tiny --output tiny_moe --family qwen3_moe
  mindrl tiny --output tiny_vision --pictures
  mindrl tiny --output tiny_qwen3_vl --pictures qwen3_vl
"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    where = "parent of both folders"
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help=where)
    parser.add_argument(
        "--tools",
        action="store_true",
        help=f"also make a model that sometimes calls a calculator; {FAMILY} only",
    )
    parser.add_argument(
        "--pictures",
        nargs="?",
        const=COUNTING_FAMILIES[0],
        choices=COUNTING_FAMILIES,
        help="make pictures of squares and a model that counts them, instead of the additions; the "
        f"value is the family of its network (default: {COUNTING_FAMILIES[0]})",
    )
    add_model_options(parser, seed=1)


def add_model_options(parser: argparse.ArgumentParser, *, seed: int) -> None:
    """Add what chooses a model; `seed` is the default."""
    add = parser.add_argument
    add("--seed", type=_seed, default=seed, help=f"seed of all random numbers (default: {seed})")
    add("--family", choices=UPDATES, help=f"family of the network (default: {FAMILY})")


def _seed(text: str) -> int:
    value = int(text) if text.isdecimal() and len(text) < 12 else -1
    if not 0 <= value < 1 << 32:
        raise argparse.ArgumentTypeError(f"{text} must be a whole number from 0 to {(1 << 32) - 1}")
    return value


@signals_as_errors()
def _make(options: argparse.Namespace) -> int:
    refuse_unless(not options.pictures, "without --pictures", options, ("--tools", "--family"))
    if options.pictures:
        data, model = made_counter(options.output, options.seed, options.pictures)
        _print_command(PICTURES, data, model, {"data_config.images.folder": data / "kept"})
        return 0
    # The recipe and the configuration of the tool user are those of one family.
    is_default = options.family in (None, FAMILY)
    refuse_unless(is_default, f"with --family {FAMILY}", options, ("--tools",))
    data, model = options.output / "data", options.output / "model"
    say(*write_questions(data, seed=options.seed))
    family = options.family or FAMILY
    say(made_model(model, data, options.seed, family))
    config = _TRAINING[family]
    if options.tools:
        model, config = made_tool_user(options.output, options.seed), TOOLS
    _print_command(config, data, model, {})
    return 0


def _print_command(config: str, data: Path, model: Path, more: Mapping[str, Path]) -> None:
    """Print the command that trains a model."""
    values = {
        "actor_config.load": model,
        "megatron_training.data_path": data / "train.jsonl",
        "megatron_training.test_data_path": data / "test.jsonl",
        **more,
    }
    words = ["mindrl", "train", "--config-name", config]
    words += [_word(key, str(value)) for key, value in values.items()]
    say("train it:", f"  {shlex.join(words)}")


def made_counter(
    output: Path, seed: int, family: VisionFamily = COUNTING_FAMILIES[0]
) -> tuple[Path, Path]:
    """Make pictures of squares, and the model that counts them unless it is up to date.

    Returns the folders of both.

    Raises:
        MindrlError: A folder is not one of ours, or the model does not learn enough.
    """
    data, model = output / "squares", output / "vision_model"
    say(*write_squares(data, seed=seed))
    say(f"{model}: {'written' if make_counter(model, seed, family) else 'up to date'}")
    return data, model


def made_tool_user(output: Path, seed: int) -> Path:
    """Make the tool user from model and data in a folder, unless it is up to date.

    Returns its folder.

    Raises:
        MindrlError: As `made_model`.
    """
    folder = output / "tools_model"
    written = make_tool_user(folder, output / "model", output / "data", seed, teacher(folder))
    say(f"{folder}: {'written' if written else 'up to date'}")
    return folder


def _word(key: str, path: str) -> str:
    """Write an override; quotation marks inside it only where they are needed."""
    return f"{key}={path}" if re.fullmatch(r"[\w./-]+", path, re.ASCII) else override(key, path)


def made_model(output: Path, data: Path, seed: int, family: Family) -> str:
    """Make a model folder unless it is up to date; returns a line about it.

    Raises:
        MindrlError: The data cannot be used, the folder is not one of ours, or a run failed.
    """
    require_engines()
    recipe = Recipe(family=family, updates=UPDATES[family])
    written = make_model(output, data, seed, recipe, teacher(output))
    return f"{output}: {'written' if written else 'up to date'}"


def teacher(model: Path) -> Teacher:
    """Return the supervised run that makes a tiny model, with its run folder next to the model."""

    def teach(rows: Iterator[TaughtRow], sections: SectionArguments) -> Path:
        steps = sections["megatron_training"]["train_iters"]
        say(f"making {model}: supervised fine-tuning, {steps} steps")
        folder = model.parent / time.strftime("runs/%Y-%m-%d/%H-%M-%S")
        summary = train(_TEACHING, train_dataset=rows, output_dir=folder, **sections).summary
        assert summary is not None  # a run that ends without an error writes one
        return Path(summary["model"])

    return Teacher(config=config_folder() / f"{_TEACHING}.yaml", run=teach)


PROGRAM = Program(
    about="Write two-digit additions to FOLDER/data and a chat model with one or two million "
    "weights, which adds with errors, to FOLDER/model, and print the command that trains it. "
    "The run that teaches it has a folder in FOLDER/runs. Making the model takes about a minute on "
    "the CPU; files that are up to date are kept.",
    examples=_EXAMPLES,
    add_options=_add_options,
    run=_make,
)
