"""The configuration of a run, from its file and the overrides of the command line.

Nothing is started and no run folder is made. What is wrong with either is said in words.
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mindrl.allocation.into_config import deprecation, with_sizes
from mindrl.config.halves import on_its_own_devices
from mindrl.config.hydra_defaults import plain_values, register_defaults
from mindrl.config.load import load_run_config, wrong_sections
from mindrl.config.run import RunConfig
from mindrl.errors import ConfigError, MindrlError
from mindrl.observability.terminal import note
from mindrl.preflight.hub import with_local_folders
from mindrl.preflight.shipped import config_folder
from mindrl.programs.command_line import RECIPE, check_overrides

_SUFFIX = ".yaml"
_NO_RUN = "program"
"""A file that has a `defaults` list and is no run by itself."""
_DEFAULTS = "defaults: [mindrl_defaults, program, _self_]"
"""What a configuration begins with."""
_REFUSED = {
    r"Could not append to config\. An item is already at '([^']+)'": (
        "+{0}: the key is there already; leave the + out"
    ),
    r"Could not override '([^']+)'": "{0} is not in the configuration; write +{0}=VALUE",
}
"""What Hydra says of an override, and what is to be done."""


def composed_config(
    name: str,
    overrides: Sequence[str],
    own_folder: str | None = None,
    *,
    downloads: bool = False,
) -> RunConfig:
    """Read a configuration by name, with overrides such as `actor_config.lr=1e-6`.

    With `downloads` what the hub's cache lacks comes from the hub, if the configuration allows it.

    Raises:
        ConfigError: It does not exist, or a key or a value is not legal.
    """
    config = on_its_own_devices(run_config(composed(name, overrides, own_folder)))
    return with_local_folders(config, downloads=downloads)


def composed(name: str, overrides: Sequence[str], own_folder: str | None = None) -> DictConfig:
    """Compose a configuration by name, as Hydra keeps it in a run folder; raises as above."""
    name, own_folder = located(name, own_folder)
    with (
        composing(name, own_folder, overrides) as (folder, more),
        initialize_config_dir(folder, version_base="1.3"),
    ):
        found: DictConfig = compose(name, overrides=[*overrides, *more])
    return found


def override(key: str, value: object) -> str:
    """Write an override from a value: a number, a text, a truth value, None, lists and sections.

    Raises:
        ConfigError: No override can name a key of a section.
    """
    return f"{key}={_spelled(value)}"


def _spelled(value: object) -> str:
    match value:
        case Mapping():
            pairs = (f"{_key(key)}:{_spelled(each)}" for key, each in value.items())
            return f"{{{','.join(pairs)}}}"
        case list() | tuple():
            return f"[{','.join(map(_spelled, value))}]"
        case str() | Path():
            return _quoted(str(value))
        case _:
            return "null" if value is None else str(value).lower()


def _key(key: object) -> str:
    """Write a key of a section, which Hydra takes without quotation marks only."""
    parser = OverridesParser.create()
    try:
        read = parser.parse_override(f"section={{{key}:null}}").value()
    except HydraException:
        read = None
    # It reads nan and inf as numbers, null and true as what they stand for.
    if not isinstance(read, dict) or list(read) != [key]:
        raise ConfigError(f"{key!r} cannot be a key in an override; write it in a YAML file")
    return str(key)


def located(name: str, own_folder: str | None) -> tuple[str, str | None]:
    """Return name and folder of a configuration, which its path may name too."""
    path = Path(name if name.endswith(_SUFFIX) else f"{name}{_SUFFIX}")
    is_path = own_folder is None and ("/" in name or name.endswith(_SUFFIX))
    if is_path and path.is_file():
        return path.stem, str(path.parent)
    return name.removesuffix(_SUFFIX), own_folder


def _quoted(text: str) -> str:
    """Write a text so that an override reads it as it is."""
    # Backslashes count only before a quotation mark, and so do those at the end.
    marked = re.sub(r"(\\*)'", r"\1\1\\'", text.replace("${", r"\${"))
    last = len(marked) - len(marked.rstrip("\\"))
    return "'" + marked + "\\" * last + "'"


def run_config(composed: DictConfig) -> RunConfig:
    """Turn what Hydra composed into the configuration of a run; says what is deprecated.

    Raises:
        ConfigError: A key or a value is not legal.
    """
    try:
        values = plain_values(composed)
    except OmegaConfBaseException as error:
        raise ConfigError(_in_words(error)) from error
    sized = with_sizes(values)
    if (old := deprecation(values)) is not None:
        note(old)
    return load_run_config(sized)


@contextmanager
def composing(
    name: str, own_folder: str | None, overrides: Sequence[str]
) -> Iterator[tuple[str, list[str]]]:
    """Prepare Hydra for a configuration, and say in words what it and its parsers raise of one.

    It is looked for in the own folder first, then among those that are shipped.

    Yields:
        The first folder, and the override by which Hydra finds configurations in the other too.

    Raises:
        ConfigError: There is no such folder, or an override or the configuration is not legal.
    """
    shipped = config_folder()
    own = shipped if own_folder is None else Path(own_folder).resolve()
    if not own.is_dir():
        raise ConfigError(f"--config-dir {own_folder}: no such folder")
    check_overrides(overrides)
    register_defaults()
    folders = [*dict.fromkeys([own, shipped])]
    _check_defaults(own / f"{name}{_SUFFIX}")
    try:
        yield str(own), [f"hydra.searchpath=['file://{each}']" for each in folders[1:]]
    except MindrlError:
        raise
    except MissingConfigException as error:
        # The file itself, or one that its defaults name.
        missing = str(error.missing_cfg_file)
        asked = name if missing == name.lstrip("/") else missing
        raise ConfigError(_no_such_name(asked, folders)) from error
    except Exception as error:
        # Their parsers raise errors of many kinds for what a file may hold.
        trouble = next(_troubles(name.removesuffix(_SUFFIX), folders, ()), None)
        raise ConfigError(trouble or _in_words(error)) from error


def run_names(folder: Path) -> list[str]:
    """Return the names of the runs in a folder of configurations.

    What runs only name in their `defaults` has no such list itself.
    """
    files = (path for path in folder.glob(f"*{_SUFFIX}") if path.stem != _NO_RUN)
    return sorted(path.stem for path in files if b"\ndefaults:" in b"\n" + path.read_bytes())


def _check_defaults(path: Path) -> None:
    """Refuse a file without the list that gives all keys their defaults.

    The folder of a run has one that names every key.

    Raises:
        ConfigError: With the line that is missing.
    """
    if not path.is_file() or path.parent.name == ".hydra":
        return
    with suppress(yaml.YAMLError, OmegaConfBaseException, OSError, ValueError, RecursionError):
        values = OmegaConf.to_container(OmegaConf.load(path))
        if isinstance(values, dict) and "defaults" not in values:
            raise ConfigError(f"{path} has no list of defaults; put this line first: {_DEFAULTS}")


def _no_such_name(name: str, folders: Sequence[Path]) -> str:
    """Say which configurations there are instead of one, and which was probably meant.

    The first folder is the user's own.
    """
    path = Path(name).with_suffix(_SUFFIX)
    known = [each for folder in folders for each in run_names(folder)]
    there = run_names(folders[0])
    if path.parent.name == RECIPE:
        files = (each for folder in folders for each in (folder / RECIPE).glob(f"*{_SUFFIX}"))
        known = there = sorted({each.stem for each in files})
    hint = f"there are: {', '.join(there)}"
    if Path(name).is_file():
        hint = f"a configuration's file ends in {_SUFFIX}"
    elif near := difflib.get_close_matches(path.stem, known, n=1):
        hint = f"did you mean {near[0]}? {hint}"
    return f"{folders[0]} has no configuration {name}; {hint}"


def _in_words(error: Exception) -> str:
    """Say in a line what Hydra or OmegaConf has raised."""
    for pattern, words in _REFUSED.items():
        if match := re.search(pattern, str(error)):
            return words.format(*match.groups())
    # Behind the key OmegaConf says more, of classes.
    text = " ".join(str(error).partition("full_key:")[0].split()) or type(error).__name__
    key = getattr(error, "full_key", None)
    return f"{key}: {text}" if key else text


def _troubles(name: str, folders: Sequence[Path], above: tuple[Path, ...]) -> Iterator[str]:
    """Say which file cannot be read and why: the named one, then those along its `defaults`."""
    paths = (folder / f"{name}{_SUFFIX}" for folder in folders)
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        # It is one of mindrl's own, or its absence has an error of its own.
        return
    if path in above:
        yield f"{path} includes itself: {' -> '.join(each.stem for each in (*above, path))}"
        return
    try:
        # Read as Hydra does; bytes first, whose errors know the line.
        path.read_bytes().decode("utf-8")
        values: Any = OmegaConf.to_container(OmegaConf.load(path))
    except (yaml.YAMLError, OmegaConfBaseException, OSError, ValueError, RecursionError) as error:
        yield f"{path}{_reason(error)}"
        return
    if not isinstance(values, dict):
        yield f"{path} must hold sections with keys"
        return
    defaults = values.pop("defaults", [])
    yield from (f"{path}: {each}" for each in wrong_sections(values))
    if not isinstance(defaults, list):
        yield f"{path}: defaults={defaults} must be a list of names"
        return
    for entry in defaults:
        if not isinstance(entry, str) and not (isinstance(entry, Mapping) and len(entry) == 1):
            yield f"{path}: the entry {entry} of defaults must be a name, or group: name"
            return
        yield from _troubles(_file_name(entry), folders, (*above, path))


def _file_name(entry: str | Mapping[str, Any]) -> str:
    """Return the file of an entry: `name`, `group: name`, `override /group@place: name`."""
    parts = [entry] if isinstance(entry, str) else [*map(str, next(iter(entry.items())))]
    parts[0] = parts[0].rpartition(" ")[2].partition("@")[0].lstrip("/")
    return "/".join(parts)


def _reason(error: Exception) -> str:
    """Say what keeps a file from being read, and in which line."""
    match error:
        case UnicodeDecodeError():
            line = error.object[: error.start].count(b"\n") + 1
            return f", line {line}: the byte {error.object[error.start]:#x} is not UTF-8"
        case RecursionError():
            return " is nested without end"
        case yaml.MarkedYAMLError() if error.problem_mark is not None:
            text = " ".join(filter(None, [error.context, error.problem]))
            return f", line {error.problem_mark.line + 1}: {text}"
        case OSError():
            return f": {error.strerror or error}"
    return f": {_in_words(error)}"
