"""Modules of the transformers library, built without weights from a folder's config.json."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig

from mindrl.errors import ModelError
from mindrl.models.placement import Shape


def built_on_meta(
    folder: str, kind: Any, attention: str | dict[str, str], part: str | None = None
) -> Any:
    """Return a model of a class of transformers, by the folder's config.json, without weights.

    `part` names the section of the config.json that describes it; None is the whole.

    Raises:
        ModelError: transformers cannot build it.
    """
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        # A decoder built alone reads its section's key, but the folder has it at the top.
        config.get_text_config().tie_word_embeddings = config.tie_word_embeddings
        with torch.device("meta"):
            network = kind.from_config(
                config if part is None else getattr(config, part),
                attn_implementation=attention,
                dtype=torch.float32,
                trust_remote_code=False,
            )
    except (ValueError, OSError, KeyError) as error:
        raise ModelError(f"{folder}: transformers cannot build it: {error}") from error
    # Rollout engines use no dropout.
    return network.eval()


def refuse_other_tensors(
    place: tuple[str, str], network: nn.Module, wanted: Mapping[str, Shape]
) -> None:
    """Compare the parameters of a whole network with the tensors of a folder's files.

    `place` has the folder, and the name of the network.

    Raises:
        ModelError: The network or the files lack a tensor, or its shapes differ.
    """
    found = {name: tuple(each.shape) for name, each in network.named_parameters()}
    if differing := sorted({*found.items()} ^ {*wanted.items()}):
        folder, kind = place
        raise ModelError(
            f"{folder}: the tensors of its files differ from those of {kind}; the first "
            f"difference is {differing[0]}"
        )


def fill_buffers(folder: str, network: Any) -> None:
    """Compute the buffers of a model of transformers, which no file contains.

    Raises:
        ModelError: transformers does not compute a buffer.
    """
    for name, module in network.named_modules():
        buffers = dict(module.named_buffers(recurse=False))
        for buffer in buffers.values():
            buffer.fill_(torch.nan if buffer.is_floating_point() else 0)
        if buffers:
            network._init_weights(module)
        for key, buffer in buffers.items():
            if not buffer.is_floating_point() or bool(buffer.isnan().any()):
                raise ModelError(f"{folder}: transformers leaves {name}.{key} empty")
