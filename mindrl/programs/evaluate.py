"""Measure a model, or that of a run, as a run measures its own: `python cli/evaluate.py`."""

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from mindrl.errors import ConfigError
from mindrl.launch.interrupts import signals_as_errors
from mindrl.observability.terminal import say
from mindrl.platform.device import choose_platform
from mindrl.platform.environment import prepare_driver
from mindrl.platform.garbage import collect_again, planning
from mindrl.preflight.checks import check
from mindrl.programs.arguments import count, parser_of
from mindrl.programs.compose import composed_config, quoted
from mindrl.programs.exits import exit_code
from mindrl.programs.train import require_engines

_WITHOUT = (
    *("megatron_training.save_interval=0", "megatron_training.keep_best=false"),
    *("megatron_training.train_iters=1", "megatron_training.keep_rollouts=1"),
    *("rl_config.debug=rollout_only", "rl_config.init_kl_coef=0"),
    *("rl_config.ref_update_interval=0", "data_config.best_by=null"),
    "data_config.test_overlap_policy=allow",
)
"""Parts of a training run that measuring its model does without."""
_EXAMPLE = """\
examples:
  python cli/evaluate.py outputs/2026-11-22/09-00-00
  python cli/evaluate.py outputs/2026-11-22/09-00-00 --data math.jsonl other.jsonl --samples 8
  python cli/evaluate.py models/Qwen2.5-7B --config-name grpo_qwen25_7b --data math.jsonl

Of a run its newest exported model is measured on what the run itself was, or on --data; start the
program where the run was started, for its paths may be relative.
"""


def evaluate(name: str = "evaluate.py") -> int:
    """Run the program; returns the exit code."""
    parser = parser_of(
        name,
        "Have a model answer the rows of data files by the engine and the rewards of a run, and "
        "print how much is right, with 95 % intervals. Metrics, answers and logs go into a folder.",
        _EXAMPLE,
    )
    add = parser.add_argument
    add("model", metavar="MODEL_OR_RUN", help="folder of a model, or of a run")
    add("--data", nargs="+", default=[], metavar="FILE", help="rows; each file is a set")
    samples = "answers to each row of --data, drawn if more than 1 (default: %(default)s, greedy)"
    add("--samples", type=count, default=1, metavar="N", help=samples)
    drawn = "of drawn answers (default: %(default)s)"
    add("--temperature", type=float, default=1.0, metavar="T", help=drawn)
    add("--best", action="store_true", help="of a run its best model, not its newest")
    configuration = "of a model: devices, sampling, rewards (default: grpo_tiny_cpu)"
    add("--config-name", default="grpo_tiny_cpu", metavar="NAME", help=configuration)
    into = "of metrics and answers (default: evaluate/<time> in the folder of the run, or here)"
    add("--output", type=Path, metavar="FOLDER", help=into)
    add("overrides", nargs="*", metavar="key=value", help="changes, as for a training program")
    options = parser.parse_intermixed_args()
    prepare_driver()
    with planning():
        return exit_code(lambda: _evaluate(options))


@signals_as_errors()
def _evaluate(options: argparse.Namespace) -> int:
    folder = Path(options.model).resolve()
    hydra, model = folder / ".hydra", folder
    is_run = (hydra / "config.yaml").is_file()
    if is_run:
        model = folder / ("model_best" if options.best else "model")
    if not (model / "config.json").is_file():
        raise ConfigError(
            f"MODEL_OR_RUN {options.model}: {model} has no config.json; it must be the folder of a "
            "model, or of a run that has exported one"
        )
    overrides = [*options.overrides, *_overrides(options, model)]
    name = "config" if is_run else options.config_name
    config = composed_config(name, overrides, str(hydra) if is_run else None, downloads=True)
    require_engines()
    platform = choose_platform(config.rl_config.device)
    plan = check(config, platform, goes_on=True)
    # Imported late: they bring torch and Ray along, and a refusal costs what a check does.
    from mindrl.data.run_data import read_data  # noqa: PLC0415
    from mindrl.launch.evaluate import measure_model  # noqa: PLC0415

    collect_again()
    root = folder if is_run else Path.cwd()
    output: Path = options.output or root / "evaluate" / time.strftime("%Y-%m-%d_%H-%M-%S")
    found = measure_model(plan, platform, read_data(config), output, step=_step(model))
    say(f"written: {output}")
    return 0 if found["status"] == "completed" else 1


def _overrides(options: argparse.Namespace, model: Path) -> Iterator[str]:
    """Yield what makes a training run one that measures this model."""
    yield from _WITHOUT
    yield f"actor_config.load={quoted(str(model))}"
    if not options.data:
        return
    yield f"megatron_training.data_path={quoted(options.data[0])}"
    yield from ("megatron_training.test_data_path=null", "data_config.held_out_fraction=0")
    names = [Path(path).stem for path in options.data]
    if len({*names}) < len(names):
        raise ConfigError(f"--data {' '.join(options.data)}: files need names of their own")
    temperature = options.temperature if options.samples > 1 else 0.0
    sets = (
        f"{{name:{quoted(name)},data_path:{quoted(path)},samples:{options.samples},"
        f"temperature:{temperature}}}"
        for name, path in zip(names, options.data, strict=True)
    )
    yield f"data_config.eval_sets=[{','.join(sets)}]"


def _step(model: Path) -> int:
    """Return the step whose weights an exported model has; 0 of any other."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads((model / "mindrl_export.json").read_text("utf-8"))["step"])
    return 0
