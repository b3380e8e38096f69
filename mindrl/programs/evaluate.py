"""Measure a model as a run evaluates its own, or rate rows: `mindrl evaluate`."""

import argparse
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path

from mindrl.config.backends import ROLLOUT_BACKEND
from mindrl.config.changed import with_value
from mindrl.config.data import paths_of
from mindrl.config.resources import RoleResource
from mindrl.config.rl import GROUP_ESTIMATORS
from mindrl.config.run import RunConfig
from mindrl.errors import ConfigError
from mindrl.launch.interrupts import signals_as_errors
from mindrl.observability.terminal import print_table, say
from mindrl.platform.environment import prepare_driver
from mindrl.platform.garbage import collect_again, planning
from mindrl.programs.arguments import Program, add_overrides, count, not_negative, refuse_unless
from mindrl.programs.compose import composed_config, override
from mindrl.programs.exits import print_json
from mindrl.programs.named_model import NamedModel, named_model
from mindrl.programs.train import checked_plan
from mindrl.report.measured_sets import MeasuredSet, measured_sets

_NO_DATA_KEYS = (
    *("data_config.train_sets=[]", "data_config.order=as_is", "data_config.order_column=null"),
    *("data_config.order_descending=false", "data_config.order_stages=null"),
    *("data_config.pass_rate_column=null", "data_config.pass_rate_low=0"),
    *("data_config.pass_rate_high=1", "data_config.held_out_fraction=0"),
)
"""Overrides that reset the keys of the training data: one file is read, or none."""
_NO_TRAINING = (
    *("megatron_training.save_interval=0", "megatron_training.keep_best=false"),
    *("rl_config.ref_update_interval=0", "data_config.best_by=null"),
    *("rl_config.critic_warmup=0", "rl_config.debug_rollouts=null"),
    *("rl_config.filter_groups_enable=false", "rl_config.filter_groups_metric=null"),
    *("actor_config.router_replay=none", "profiler_config.profile=false"),
    *("spool_config.job=null", "spool_config.folder=null"),
)
"""Overrides that disable the parts of a training run that answers do not need."""
_ONLY_EVALUATES = (
    *("megatron_training.train_iters=1", "megatron_training.keep_rollouts=1"),
    *("rl_config.debug=rollout_only", "rl_config.init_kl_coef=0", "reward_config=null"),
    *("data_config.test_overlap_policy=allow", "rl_config.tracking.trackers=[]"),
    "rl_config.tracking.prometheus_port=null",
)
"""Overrides that also disable what measuring a model does not need."""
_NO_EVALUATION = (
    *("megatron_training.test_data_path=null", "rl_config.test_freq=0"),
    *("data_config.eval_sets=[]", *_NO_DATA_KEYS),
)
"""Overrides of a run that answers the rows of one training file."""
_CONFIG = "grpo_tiny_cpu"
_CHANGE = re.compile(r"[+~]*[a-z_]+(\.[a-z0-9_.]+)?=")
"""A change to a configuration, which no file name looks like."""
_NO_NAME = re.compile(r"[^A-Za-z0-9_.-]")
"""Characters that a file name may contain and a set name may not."""
_EXAMPLE = """\
examples:
  mindrl evaluate outputs/2026-11-22/09-00-00
  mindrl evaluate outputs/2026-11-22/09-00-00 --data math.jsonl other.jsonl --samples 8
  mindrl evaluate models/Qwen2.5-7B --config-name grpo_qwen25_7b --data math.jsonl
  mindrl evaluate --write-column pass_rate --data train.jsonl --output rated.jsonl --samples 8

For a run, its newest exported model is evaluated on the evaluation data of the run, or on --data.
Start the program in the folder where the run was started, because its paths may be relative.
data_config.pass_rate_column=pass_rate data_config.pass_rate_low=0.1 trains on written pass rates.
"""


_REST = {
    "reward": "{reward:.3f}",
    "tokens": "{response_tokens:.0f}",
    "cut off": "{cut_fraction:.1%}",
}
"""Columns after those of the rates."""


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", nargs="?", metavar="MODEL_OR_RUN", help="folder of a model, or of a run")
    add("--data", nargs="+", default=[], metavar="FILE", help="data files; each is a separate set")
    samples = "answers per row of --data (default: 1; 8 with --write-column)"
    add("--samples", type=count, metavar="N", help=samples)
    drawn = "for answers to --data (default: 1; with one answer per row 0, the most likely token; "
    drawn += "with --write-column that of the configuration)"
    add("--temperature", type=not_negative, metavar="T", help=drawn)
    column = "sample answers to the rows of one file as in training, and write the new file "
    column += "--output with this column of pass rates: the share of answers with the highest "
    column += "score of the first reward function; the model is MODEL_OR_RUN or the configuration's"
    add("--write-column", "--column", metavar="NAME", help=column)
    add("--best", action="store_true", help="use the best model of a run instead of its newest")
    configuration = f"devices, sampling and rewards for a model (default: {_CONFIG})"
    add("--config-name", metavar="NAME", help=configuration)
    into = "folder for metrics and answers (default: evaluate/<time> in the run folder, or here); "
    into += "with --write-column the new file"
    add("--output", type=Path, metavar="PATH", help=into)
    add("--json", action="store_true", help="print one JSON object instead of the table")
    add_overrides(parser)


def _parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the options; changes may stand where a model or a file would."""
    options = parser.parse_intermixed_args()
    given = [*filter(None, [options.model]), *options.data]
    changes = [each for each in given if _CHANGE.match(each)]
    options.overrides = [*changes, *options.overrides]
    options.data = [each for each in options.data if each not in changes]
    if options.model in changes:
        options.model = None
    if options.model is None and not options.write_column:
        parser.error("the following arguments are required: MODEL_OR_RUN")
    if options.write_column and (options.output is None or len(options.data) != 1):
        parser.error("--write-column needs --data FILE and --output FILE")
    return options


@planning()
@signals_as_errors()
def _run(options: argparse.Namespace) -> int:
    prepare_driver()
    model = None if options.model is None else named_model(options.model, best=options.best)
    _refuse_unused(options, model)
    if options.write_column:
        # Imported late: it reads Parquet.
        from mindrl.programs.pass_rates import rate_rows  # noqa: PLC0415

        return rate_rows(options, rating_config(options, model))
    assert model is not None
    return _evaluate(options, model)


def _refuse_unused(options: argparse.Namespace, model: NamedModel | None) -> None:
    refuse_unless(not options.write_column, "without --write-column", options, ("--json",))
    refuse_unless(options.data, "with --data", options, ("--samples", "--temperature"))
    refuse_unless(model, "with MODEL_OR_RUN", options, ("--best",))
    is_of_run = model is not None and model.run is not None
    refuse_unless(not is_of_run, "for a model without a run", options, ("--config-name",))


def _evaluate(options: argparse.Namespace, model: NamedModel) -> int:
    output = _output(options, model)
    plan, platform = checked_plan(measuring_config(options, model))
    # Imported late: they load torch and Ray, and errors should come as fast as in a check.
    from mindrl.data.run_data import read_data  # noqa: PLC0415
    from mindrl.launch.evaluate import measure_model  # noqa: PLC0415

    collect_again()
    found = measure_model(plan, platform, read_data(plan.config), output, step=model.step)
    sets = [*measured_sets(output)]
    if options.json:
        print_json({"folder": str(output), "sets": [asdict(each) for each in sets]})
    else:
        _print(sets)
        say(f"written: {output}")
    return 0 if found["status"] == "completed" else 1


def _output(options: argparse.Namespace, model: NamedModel) -> Path:
    """Return the folder for metrics and answers.

    Raises:
        ConfigError: The folder contains metrics already.
    """
    root = model.run or Path.cwd()
    output: Path = options.output or root / "evaluate" / time.strftime("%Y-%m-%d_%H-%M-%S")
    metrics = output / "metrics.jsonl"
    # A failed evaluation leaves an empty file.
    if metrics.exists() and metrics.stat().st_size:
        raise ConfigError(f"--output {output} already has metrics; name another folder")
    return output


def measuring_config(options: argparse.Namespace, model: NamedModel) -> RunConfig:
    """Return the configuration of a run that only measures a model.

    Raises:
        ConfigError: It is not legal, samples no answers, or there is no data to measure on.
    """
    files = [*_of_files(options)] if options.data else []
    changes = (*files, *_NO_TRAINING, *_ONLY_EVALUATES)
    config = _with_own_engines(_composed(options, model, *changes))
    for key in ("sft_config", "preference_config"):
        if getattr(config, key) is not None:
            raise ConfigError(
                f"{key}: a run with it has no sampling and rewards; measure its model with another "
                f"configuration: mindrl evaluate {model.folder} --config-name NAME --data FILE"
            )
    if options.data:
        _check_rewarded(config)
    if config.data_config.held_out_fraction:
        # The held-out rows are part of the training data, so all of it is needed.
        return config
    # Otherwise the training data need not be read.
    read = override("megatron_training.data_path", _held_out(config))
    return _with_own_engines(_composed(options, model, *changes, *_NO_DATA_KEYS, read))


def _with_own_engines(config: RunConfig) -> RunConfig:
    """Return a configuration in which engines of the run generate, in the sizes of its servers."""
    generate = config.generate_config
    backend = generate.backend if config.rollout_backend == ROLLOUT_BACKEND else ""
    generate = replace(generate, backend=backend, servers=(), servers_file=None)
    generate = replace(generate, server_token_file=None, router=None)
    return replace(config, generate_config=generate)


def _check_rewarded(config: RunConfig) -> None:
    """Raise a ConfigError for a file of `--data` whose name selects no reward."""
    known = [each.data_source for each in config.data_config.rewards]
    if not known or config.data_config.source_column is not None:
        return
    for each in config.data_config.eval_sets:
        if each.name not in known:
            raise ConfigError(
                f"--data {each.data_path}: data_config.rewards has no entry for {each.name}; name "
                f"the file after one of {', '.join(known)}, or set data_config.source_column"
            )


def rating_config(options: argparse.Namespace, model: NamedModel | None) -> RunConfig:
    """Return the configuration of a run that answers the rows of a file, without training.

    Raises:
        ConfigError: It is not legal, or has no reward function.
    """
    read = override("megatron_training.data_path", options.data[0])
    drawn = [f"rl_config.n_samples_per_prompt={options.samples or 8}"]
    if options.temperature is not None:
        drawn.append(f"generate_config.sampling_config.temperature={options.temperature}")
    config = _composed(options, model, read, *drawn, *_NO_TRAINING, *_NO_EVALUATION)
    rl = config.rl_config
    if rl.reference_resource == RoleResource():
        # Devices of a reference are also the rollout's, so it is left out only without its own.
        config = with_value(config, "rl_config.init_kl_coef", 0.0)
    if rl.adv_estimator in GROUP_ESTIMATORS:
        # No advantage is computed, and a single answer has no group.
        config = with_value(config, "rl_config.adv_estimator", "reinforce_plus_plus")
    if not config.rl_config.verifier_function:
        raise ConfigError(
            "rl_config.verifier_function is empty: its first entry defines correct answers"
        )
    if config.environment_config is not None:
        raise ConfigError(
            "environment_config: --write-column rates single answers, without an environment; add "
            "environment_config=null"
        )
    return config


def _composed(options: argparse.Namespace, model: NamedModel | None, *changes: str) -> RunConfig:
    """Return the configuration of the model's run, or of `--config-name`, with changes."""
    name, folder = options.config_name or _CONFIG, None
    if model is not None:
        name, folder = "config" if model.run else name, model.hydra
        changes = (*changes, override("actor_config.load", model.folder))
        if model.run:
            # The exported weights contain the adapters.
            changes = (*changes, "actor_config.lora.load=null")
    # The run may have been made before a key existed.
    forced = (f"++{each}" for each in changes)
    return composed_config(name, [*options.overrides, *forced], folder, downloads=True)


def _held_out(config: RunConfig) -> str:
    """Return a file that is evaluated.

    Raises:
        ConfigError: No file is evaluated.
    """
    sets = (each.data_path for each in config.data_config.eval_sets)
    found = next(
        chain.from_iterable(map(paths_of, (config.megatron_training.test_data_path, *sets))), None
    )
    if found is None:
        raise ConfigError(
            "megatron_training.test_data_path and data_config.eval_sets are empty; name the "
            "evaluation data with --data FILE"
        )
    return found


def _of_files(options: argparse.Namespace) -> Iterator[str]:
    """Yield the overrides that make each file of `--data` an evaluation set."""
    yield from ("megatron_training.test_data_path=null", "data_config.held_out_fraction=0")
    names = [_NO_NAME.sub("_", Path(path).stem).lstrip("_.-") or "data" for path in options.data]
    if len({*names}) < len(names):
        raise ConfigError(f"--data {' '.join(options.data)}: files need different names")
    samples, temperature = options.samples or 1, options.temperature
    if temperature is None:
        temperature = 1.0 if samples > 1 else 0.0
    drawn = {"samples": samples, "temperature": temperature}
    sets = zip(names, options.data, strict=True)
    yield override(
        "data_config.eval_sets", [{"name": name, "data_path": path, **drawn} for name, path in sets]
    )


def _print(sets: Sequence[MeasuredSet]) -> None:
    """Print a row per set; sets with the same number of answers per prompt share a table."""
    for samples in dict.fromkeys(each.samples for each in sets):
        alike = [each for each in sets if each.samples == samples]
        rates = {name: f"{{{name}}}" for name in alike[0].rates}
        print_table(map(_row, alike), {"set": "{name}", "prompts": "{prompts:d}"} | rates | _REST)


def _row(measured: MeasuredSet) -> dict[str, object]:
    rates = measured.rates.items()
    texts = {name: f"{at:.3f} [{low:.3f}, {high:.3f}]" for name, (at, low, high) in rates}
    return asdict(measured) | texts


PROGRAM = Program(
    about="Evaluate a model on data files with the engine and the rewards of a run, and print the "
    "scores with 95 % intervals. Metrics, answers and logs are written to a folder.",
    examples=_EXAMPLE,
    add_options=_add_options,
    run=_run,
    parse=_parse,
)
