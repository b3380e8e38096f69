"""Convert a MindSpeed-RL or verl file to a mindrl file: `mindrl import-config`. Needs no torch."""

import argparse
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import Any, get_args

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mindrl.config.load import load_run_config
from mindrl.config.run import RunConfig
from mindrl.config.text import (
    WIDTH,
    config_text,
    dotted,
    needs_yaml_suffix,
    nested,
    spelled_value,
    write_new,
)
from mindrl.config.validate import findings
from mindrl.config.yaml_bounds import bounded_graph
from mindrl.errors import ConfigError, OutputError
from mindrl.migrate.file import TheirRun, their_run
from mindrl.migrate.mapped import MISSING, Import, Kind, Mapped
from mindrl.migrate.run import import_run
from mindrl.migrate.script import Script, read_script
from mindrl.migrate.sizes import model_sizes
from mindrl.migrate.verl import import_verl, why_ignored
from mindrl.migrate.verl_keys import SECTIONS
from mindrl.migrate.verl_run import LOAD, STEPS
from mindrl.observability.regular_files import read_regular_text
from mindrl.observability.terminal import printable, say
from mindrl.preflight.shipped import has_sizes, sizes_path
from mindrl.programs.arguments import Program, count
from mindrl.programs.command_line import parsed_override
from mindrl.programs.exits import FAILED, print_json, report, written
from mindrl.programs.hydra_words import why_unreadable

_OVERRIDE = re.compile(r"~|[^=]+=")
_TITLES: Mapping[Kind, str] = {
    "refused": "refused: mindrl does not support these parts of the run",
    "open": "open: decide these before the first run",
    "derived": "derived",
    "renamed": "renamed",
    "honoured": "honoured: same name, same meaning",
    "ignored": "ignored",
}
_EXAMPLE = """\
example:
  mindrl import-config MindSpeed-RL/configs/grpo_qwen25_7b_A3.yaml -o configs/mine.yaml
  mindrl train --config-name mine --dry-run
  mindrl import-config outputs/VERL-RUN/.hydra/overrides.yaml data.seed=7 -o mine.yaml
  mindrl import-config verl/examples/grpo_trainer/run_qwen3-8b.sh -o mine.yaml

The model files are read from the folder `model` next to the file.
"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "file",
        metavar="THEIRS",
        help="file of the other trainer: .yaml, or a .sh script that starts verl",
    )
    add("-o", "--output", required=True, metavar="OURS.yaml", help="new file")
    add("overrides", nargs="*", metavar="key=value", help="overrides of a verl run, applied last")
    add(
        "--model-configs",
        metavar="DIR",
        help="MindSpeed-RL's model files (default: model, next to THEIRS)",
    )
    devices = "devices of one machine; MindSpeed-RL's files omit it (default: %(default)s)"
    add("--devices-per-node", type=count, default=8, metavar="N", help=devices)
    refused = "refused keys to drop, or `all`: the report lists how the run differs"
    add("--leave-out", default="", metavar="KEY,KEY", help=refused)
    add("--json", action="store_true", help="print the report as JSON")


def _import(options: argparse.Namespace) -> int:
    needs_yaml_suffix(options.output)
    file = Path(options.file)
    if file.suffix == ".py":
        raise ConfigError(
            f"{file} is Python code; needed: a .yaml file of MindSpeed-RL or verl, or a .sh script "
            "of verl. docs/how-to/come-from-trl.md lists the keys of TRL"
        )
    script = _script(file) if file.suffix == ".sh" else None
    sections = _yaml(file, options.overrides, script)
    theirs, given = None, dict(dotted(sections))
    if script is not None or SECTIONS & sections.keys():
        release, imported = "verl", import_verl(given, _training_rows(given))
        if script is not None:
            imported = replace(imported, mapped=[*_not_stated(script, given), *imported.mapped])
        source = f"{file.name}, a {'script' if script else 'file'} of verl"
    else:
        theirs = _read(sections, options)
        given, release = dict(theirs.given), theirs.release
        imported = import_run(theirs, options.devices_per_node)
        source = f"{Path(options.file).name}, a file of MindSpeed-RL {release}"
    refused = list(_refused(imported, options.leave_out))
    reasons = refused
    if not refused:
        sizes: dict[str, str] = {}
        if theirs is not None:
            imported, sizes = _with_sizes(imported, theirs, options.output)
        reasons = _write(imported, {options.output: _yaml_text(imported, source), **sizes})
    if options.json:
        answer = {
            "source": options.file,
            "release": release,
            "output": None if refused else options.output,
            "keys": _as_json(imported, given),
            "findings": reasons,
        }
        # Values of the imported file may be dates.
        print_json(answer, spell=str)
    else:
        last = "no file was written" if refused else written(options.output)
        say(f"{source}\n", *_report_lines(imported), last)
    return report(reasons, FAILED) if reasons else 0


def _refused(imported: Import, leave_out: str) -> Iterator[str]:
    """Yield the refused keys that are not left out; a key left out must be refused."""
    keys = [key for key in leave_out.split(",") if key]
    refused = {each.key: each.note for each in imported.refused}
    if unknown := [key for key in keys if key not in refused and key != "all"]:
        there = ", ".join(refused) or "none"
        raise ConfigError(
            f"--leave-out {','.join(unknown)} must be among the refused keys: {there}"
        )
    for key, note in refused.items():
        if key not in keys and "all" not in keys:
            yield f"{key}: {note}; to drop it: --leave-out {key}"


def _write(imported: Import, files: Mapping[str, str]) -> list[str]:
    """Write the new files; returns the known problems that keep the run from working."""
    # The checks need values for the keys that the user has to set.
    stand_ins = {STEPS: 1_000_000, LOAD: "model"}
    values = {
        key: stand_ins[key] if value == MISSING else value for key, value in imported.values.items()
    }
    config = _run_config(imported, values)
    if there := [path for path in files if Path(path).exists()]:
        raise OutputError(f"-o {there[0]}: file exists already")
    for path, text in files.items():
        write_new(path, text)
    # The report lists what the user must settle.
    open_keys = {key for each in imported.mapped if each.kind == "open" for key in each.sets}
    return [str(each) for each in findings(config) if each.field not in open_keys]


def _run_config(imported: Import, values: Mapping[str, Any]) -> RunConfig:
    """Build the configuration of a run; each error also names the key of the imported file."""
    try:
        return load_run_config(nested(values))
    except ConfigError as error:
        lines = map(imported.with_origin, str(error).splitlines())
        raise ConfigError("\n".join(lines)) from error


def _with_sizes(imported: Import, theirs: TheirRun, output: str) -> tuple[Import, dict[str, str]]:
    """Add a file with the model's sizes next to the new one, if no other sizes are known."""
    config = _run_config(imported, imported.values)
    sizes = None if has_sizes(sizes_path(config, "actor")) else model_sizes(theirs)
    if sizes is None:
        return imported, {}
    path = str(Path(output).with_suffix("")) + "-sizes.json"
    place = theirs.actor.place("num_layers").rpartition(".")[0]
    note = "the model's sizes, for checks and plans on machines without actor_config.load"
    kept = Mapped(place, "derived", {"actor_config.sizes": path}, note)
    return replace(imported, mapped=[*imported.mapped, kept]), {path: json.dumps(sizes) + "\n"}


def _read(sections: dict[str, Any], options: argparse.Namespace) -> TheirRun:
    """Parse a MindSpeed-RL file and the model files in its defaults list.

    Raises:
        ConfigError: A file is missing or is not YAML, or has keys that MindSpeed-RL does not know.
    """
    file = Path(options.file)
    if options.overrides:
        raise ConfigError(f"{options.overrides[0]}: overrides are possible only for verl files")
    folder = Path(options.model_configs) if options.model_configs else file.parent / "model"
    models: dict[str, Any] = {}
    for name in _model_names(file, sections.pop("defaults", None) or []):
        path = folder / f"{name}.yaml"
        if not path.is_file():
            raise ConfigError(f"{path}: no such model file; --model-configs names their folder")
        models |= _yaml(path)
    broken = [name for name, keys in models.items() if not isinstance(keys, Mapping)]
    if broken:
        raise ConfigError(f"{folder}: the model {broken[0]} must be a section with keys")
    return their_run(sections, models)


def _model_names(file: Path, defaults: Any) -> Iterator[str]:
    entries = defaults if isinstance(defaults, list) else [defaults]
    for entry in entries:
        if entry == "_self_":
            continue
        names = entry.get("model") if isinstance(entry, Mapping) else None
        if names is None:
            raise ConfigError(f"{file}: defaults: {entry}: must be a model file")
        yield from map(str, names if isinstance(names, list) else [names])


def _script(path: Path) -> Script:
    """Read the overrides of a script, with the environment of this user and working folder.

    Raises:
        ConfigError: The file cannot be read, or does not start exactly one verl run.
    """
    try:
        text = read_regular_text(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start + 1} is not UTF-8") from error
    try:
        return read_script(text, {"HOME": str(Path.home()), "PWD": str(Path.cwd())})
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _not_stated(script: Script, given: Mapping[str, Any]) -> Iterator[Mapped]:
    """Yield open entries for what neither the script nor the command line states."""
    if script.config_name:
        note = (
            f"the script does not contain the keys of {script.config_name}.yaml; import "
            ".hydra/overrides.yaml of a run, or add them to the command line"
        )
        yield Mapped("--config-name", "open", note=note)
    for missing in script.unread:
        note = "it may set further keys of verl: add their overrides to the command line"
        yield Mapped(missing, "open", note=note)
    for key in script.deleted:
        note = (
            "the script deletes this from verl's own configuration; that is not taken over, so "
            "compare what the imported run does without the key"
        )
        yield Mapped(f"~{key}", "open", note=note)
    for key, missing in script.unresolved.items():
        if key in given:
            continue
        if reason := why_ignored(key, given):
            yield Mapped(key, "ignored", note=reason)
        else:
            note = (
                f"needs {missing}, which the script does not set; add {key}=VALUE to the command "
                "line, or verl's default is used"
            )
            yield Mapped(key, "open", note=note)


def _training_rows(given: Mapping[str, Any]) -> int | None:
    """Return the number of rows in the training files of a verl run; None if one is missing."""
    named = given.get("data.train_files") or ()
    files = [named] if isinstance(named, str) else named
    paths = [Path(str(each)).expanduser() for each in files]
    if not paths or not all(each.is_file() for each in paths):
        return None
    # Imported late: it loads `datasets`.
    from mindrl.data.rows import count_rows  # noqa: PLC0415

    return sum(map(count_rows, map(str, paths)))


def _loaded(path: Path) -> DictConfig | ListConfig:
    """Load a file after checking that its anchors do not expand to too many values."""
    bounded_graph(path)
    return OmegaConf.load(path)


def _yaml(
    path: Path, overrides: Sequence[str] = (), script: Script | None = None
) -> dict[str, Any]:
    """Load a file with the YAML rules that make 1e-6 a number, and resolve interpolations.

    It may be a list of overrides as Hydra writes it, or a script; `overrides` are applied last.
    """
    try:
        loaded = _loaded(path) if script is None else ListConfig([*script.overrides])
        if isinstance(loaded, ListConfig) and all(map(_OVERRIDE.match, map(str, loaded))):
            loaded, overrides = OmegaConf.create(), [*map(str, loaded), *overrides]
        if not isinstance(loaded, DictConfig):
            raise ConfigError(f"{path} must contain sections with keys")
        for each in overrides:
            _apply(each, loaded)
        values = OmegaConf.to_container(loaded, resolve=True)
    except (OSError, RecursionError, ValueError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path}{why_unreadable(error)}") from error
    assert isinstance(values, dict), "it was one before"
    return {str(key): value for key, value in values.items()}


def _apply(text: str, config: DictConfig) -> None:
    """Change a configuration by an override, which Hydra parses.

    Raises:
        ConfigError: It is not an override, has several values, or deletes a key that is not there.
    """
    override = parsed_override(text)
    key = override.get_key_element().lstrip("+~")
    if override.is_sweep_override():
        raise ConfigError(f"{text} has several values; write a list, {key}=[A,B]")
    if not override.is_delete():
        OmegaConf.update(config, key, override.value(), force_add=True)
        return
    section, _, name = key.rpartition(".")
    node = OmegaConf.select(config, section) if section else config
    if not isinstance(node, DictConfig) or name not in node:
        raise ConfigError(f"{text}: nothing before it sets this key; leave it out")
    del node[name]


def _yaml_text(imported: Import, source: str) -> str:
    """Return the new file's text, with a comment above each key that is not simply copied."""
    comments = {
        next(iter(each.sets)): f"{each.key}: {each.note}"
        for each in imported.mapped
        if each.kind not in ("honoured", "ignored") and each.sets
    }
    header = [f"Imported from {source}."]
    header += [f"Dropped {each.key}: {each.note}" for each in imported.refused]
    values = imported.values
    has_critic = values.get("rl_config.adv_estimator") == "gae"
    return config_text(values, header=header, comments=comments, has_critic=has_critic)


def _report_lines(imported: Import) -> Iterator[str]:
    """Yield the lines of the report, grouped by kind."""
    for kind, title in _TITLES.items():
        found = [each for each in imported.mapped if each.kind == kind]
        if found:
            yield f"{title} ({len(found)})"
            yield from map(printable, _of_kind(kind, found))
            yield ""


def _as_json(imported: Import, given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of the report as plain values."""
    return [
        {"key": each.key, "value": given.get(each.key), **vars(each)}
        for kind in get_args(Kind)
        for each in imported.mapped
        if each.kind == kind
    ]


def _of_kind(kind: Kind, found: Sequence[Mapped]) -> Iterator[str]:
    match kind:
        case "honoured":
            yield from _listed(each.key for each in found)
        case "ignored":
            for reason in dict.fromkeys(each.note for each in found):
                yield f"  {reason}:"
                yield from _listed(each.key for each in found if each.note == reason)
        case _:
            for each in found:
                sets = ", ".join(f"{key}={spelled_value(to)}" for key, to in each.sets.items())
                yield f"  {each.key}{f' -> {sets}' if sets else ''}"
                yield f"      {each.note}"


def _listed(keys: Iterable[str]) -> Iterator[str]:
    text = ", ".join(dict.fromkeys(keys))
    indent = " " * 6
    yield from wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False
    )


PROGRAM = Program(
    about="Convert a GRPO, DAPO or PPO file of MindSpeed-RL, or the configuration, the overrides "
    "or the shell script of a verl run, and report the result for each key. A script is read, "
    "never executed.",
    examples=_EXAMPLE,
    add_options=_add_options,
    run=_import,
)
