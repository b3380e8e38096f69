"""Fingerprints of models that a run reads and never changes, to detect replaced ones."""

from collections.abc import Iterator
from pathlib import Path

import xxhash

from mindrl.config.layout_keys import FROZEN
from mindrl.config.model_folders import further_models
from mindrl.config.run import RunConfig

_BLOCKS, _BLOCK_BYTES = 64, 64 << 10


def fixed_models(config: RunConfig) -> dict[str, str]:
    """Return the fingerprint of each model that never changes, by the key of its folder."""
    # With adapters, the actor's own weights are in no checkpoint.
    fixed = (*FROZEN, *(("actor",) if config.actor_config.lora.r else ()))
    folders: dict[str, str] = {}
    for role in (role for role in config.roles if role in fixed):
        others = {key: folder for folder, key in further_models(config, role).items()}
        folders |= {config.model_key(role): config.model_path(role)} | others
    return {key: fingerprint(Path(folder)) for key, folder in folders.items()}


def replaced_models(before: dict[str, str], config: RunConfig) -> Iterator[str]:
    """Yield an error text for each model that was replaced, unless `resume_allow` names it."""
    allowed = config.megatron_training.resume_allow
    for key, found in fixed_models(config).items():
        if key in before and key not in allowed and before[key] != found:
            yield (
                f"{key}={config.value_of(key)} differs from the model of the resumed run: "
                f"its fingerprint is {found}, expected {before[key]}. Restore that model, "
                "or list the key in megatron_training.resume_allow to continue anyway"
            )


def fingerprint(folder: Path) -> str:
    """Return XXH3 of names, sizes and 64 evenly spaced blocks of 64 KiB of each weight file.

    Further training changes nearly all weights; hashing whole files would take minutes for a large
    model.
    """
    checksum = xxhash.xxh3_128()
    for path in sorted(folder.glob("*.safetensors")):
        nbytes = path.stat().st_size
        checksum.update(f"{path.name} {nbytes}\n".encode())
        with path.open("rb") as file:
            for block in range(_BLOCKS):
                file.seek(max(nbytes - _BLOCK_BYTES, 0) * block // (_BLOCKS - 1))
                checksum.update(file.read(_BLOCK_BYTES))
    return checksum.hexdigest()
