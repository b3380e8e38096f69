"""Folders of Qwen3.5 as they are published: a decoder, a vision tower, and layers that draft."""

import json
from pathlib import Path
from shutil import copyfile

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText

_CLASSES = {
    "qwen3_5": "Qwen3_5ForConditionalGeneration",
    "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
}
_TOWER = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "patch_size": 4,
    "num_position_embeddings": 16,
}


def nest(flat: Path, target: Path) -> None:
    """Write the folder of a text model of such a family, with a random tower and drafting layer.

    The experts of a layer are in two stacks, the tower is in bfloat16 and in a file of its own.
    """
    values = json.loads((flat / "config.json").read_text("utf-8"))
    family = values["model_type"].removesuffix("_text")
    tied = values.pop("tie_word_embeddings", False)
    del values["architectures"]
    whole = {
        "architectures": [_CLASSES[family]],
        "model_type": family,
        "text_config": values,
        "vision_config": {
            **_TOWER,
            "model_type": f"{family}_vision",
            "out_hidden_size": values["hidden_size"],
        },
        "image_token_id": values["vocab_size"] - 1,
        "video_token_id": values["vocab_size"] - 2,
        "vision_start_token_id": values["vocab_size"] - 3,
        "vision_end_token_id": values["vocab_size"] - 4,
        "tie_word_embeddings": tied,
    }
    target.mkdir(exist_ok=True)
    (target / "config.json").write_text(json.dumps(whole), "utf-8")
    files = {"model-00001-of-00002.safetensors": _decoder(flat)}
    files["model-00002-of-00002.safetensors"] = _others(target, values["hidden_size"])
    for name, tensors in files.items():
        save_file(tensors, target / name, metadata={"format": "pt"})
    places = {tensor: name for name, tensors in files.items() for tensor in tensors}
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    (target / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
    for file in flat.iterdir():
        if file.suffix != ".safetensors" and not (target / file.name).exists():
            copyfile(file, target / file.name)


def others_of(folder: Path) -> dict[str, Tensor]:
    """Return what a folder has besides its decoder, under the names of its files."""
    kept = ("model.visual.", "mtp.")
    return {name: each for name, each in tensors_of(folder).items() if name.startswith(kept)}


def tensors_of(folder: Path) -> dict[str, Tensor]:
    """Return all tensors of a folder."""
    files = [load_file(path) for path in folder.glob("*.safetensors")]
    return {name: each for file in files for name, each in file.items()}


def _decoder(flat: Path) -> dict[str, Tensor]:
    found = tensors_of(flat)
    layers = [name[: -len("gate.weight")] for name in found if name.endswith("mlp.gate.weight")]
    for layer in layers:
        here, experts = f"{layer}experts.", range(len(found[f"{layer}gate.weight"]))
        parts = [
            [found.pop(f"{here}{expert}.{kind}_proj.weight") for kind in ("gate", "up", "down")]
            for expert in experts
        ]
        found[f"{here}gate_up_proj"] = torch.stack([torch.cat(each[:2]) for each in parts])
        found[f"{here}down_proj"] = torch.stack([each[2] for each in parts])
    here = "model.language_model."
    return {
        here + name.removeprefix("model.") if name.startswith("model.") else name: each
        for name, each in found.items()
    }


def _others(folder: Path, hidden: int) -> dict[str, Tensor]:
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder))
    draw = torch.Generator().manual_seed(3)
    tower = {
        f"model.visual.{name}": torch.randn(each.shape, generator=draw).bfloat16()
        for name, each in model.model.visual.state_dict().items()
    }
    return {**tower, "mtp.fc.weight": torch.randn(hidden, 2 * hidden, generator=draw)}
