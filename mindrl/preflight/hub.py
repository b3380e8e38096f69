"""Resolve names on the Hugging Face hub to folders of its cache on this machine."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from mindrl.config.changed import with_value
from mindrl.config.data import paths_of
from mindrl.config.data_rules import SUFFIXES, data_keys, is_pattern
from mindrl.config.model_folders import folder_keys
from mindrl.config.run import RunConfig
from mindrl.errors import ConfigError
from mindrl.observability.terminal import note

HubKind = Literal["model", "dataset"]
_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:/(.+))?")
_RESERVED = ("models/", "datasets/")
"""Folders, not owners on the hub, which has pages of its own there."""
_OF_A_MODEL = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "*.tiktoken")
_ALLOW = "megatron_training.allow_download"
_MODELS_WITHOUT_ROLE = (
    "megatron_training.tokenizer_name_or_path",
    "generate_config.speculative_config.model",
)


def with_local_folders(config: RunConfig, *, downloads: bool) -> RunConfig:
    """Replace names that are not paths here by folders of the hub's cache.

    Names that are not in the cache stay unchanged, or are downloaded if the configuration and
    `downloads` allow it.

    Raises:
        ConfigError: It cannot be downloaded.
    """
    fetches = downloads and config.megatron_training.allow_download
    for key in _model_keys(config):
        found = _found(key, str(config.value_of(key)), "model", fetches=fetches)
        config = with_value(config, key, found)
    for key in data_keys(config):
        given = config.value_of(key)
        found_all = tuple(_found(key, each, "dataset", fetches=fetches) for each in paths_of(given))
        config = with_value(config, key, found_all[0] if isinstance(given, str) else found_all)
    return config


def hub_hint(path: str, kind: HubKind) -> str:
    """Return advice about a name that is neither here nor in the cache; empty for other paths."""
    if path.startswith("~"):
        return "; ~ is not expanded: write your home folder in full"
    owner, _, name = path.partition("/")
    if owner == "models" and kind == "model" and "/" not in name and not Path(path).exists():
        return (
            f"; put it there with `hf download OWNER/{name} --local-dir {path}`, or write its name "
            f"on the hub, OWNER/{name}"
        )
    if _split(path, kind) is None or Path(owner).exists():
        return ""
    return (
        f", and the hub cache of this machine has no {kind} of this name; download it "
        f"with {_ALLOW}=true or `hf "
        f"download{' --repo-type dataset' if kind == 'dataset' else ''} "
        f"{'/'.join(path.split('/')[:2])}`"
    )


def _model_keys(config: RunConfig) -> Iterator[str]:
    for key in (*folder_keys(config), *_MODELS_WITHOUT_ROLE):
        if config.value_of(key):
            yield key


def _split(path: str, kind: HubKind) -> tuple[str, str] | None:
    """Return the name on the hub and the path inside; None for a path of this machine."""
    match = _NAME.fullmatch(path)
    if match is None or Path(path).exists():
        return None
    name, inside = match[1], match[2] or ""
    is_here = is_pattern(name) or Path(name).suffix.lower() in SUFFIXES
    is_here = is_here or path.startswith(_RESERVED)
    return None if is_here or (inside and kind == "model") else (name, inside)


def _found(key: str, path: str, kind: HubKind, *, fetches: bool) -> str:
    split = _split(path, kind)
    if split is None:
        return path
    name, inside = split
    # Imported late: it is slow, and few runs use names on the hub.
    from huggingface_hub import snapshot_download  # noqa: PLC0415
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError  # noqa: PLC0415

    wanted = [inside, f"{inside}/*"] if inside else [f"*{suffix}" for suffix in SUFFIXES]
    patterns = [*_OF_A_MODEL] if kind == "model" else wanted
    if fetches:
        note(f"{key}={path}: looking for {name} on the hub")
    try:
        folder = snapshot_download(
            name, repo_type=kind, allow_patterns=patterns, local_files_only=not fetches
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        if not fetches:
            return path
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(f"{key}={path}: download from the hub failed: {first}") from error
    return str(Path(folder, inside)) if inside else folder
