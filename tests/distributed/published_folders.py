"""Tiny vision-language models in folders of the form in which Qwen publishes its own.

Qwen2.5-VL: older names of tensors, sizes of the decoder at the top of config.json, pixel limits.
Qwen3-VL: newer names, `text_config`, sizes of edges. Both: weights in bfloat16 in several files
with an index, the chat template in the tokenizer's configuration and in `chat_template.json`.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from mindrl.tiny.vision.habits import VisionFamily

FILES = 3
_WHOLE = ("architectures", "image_token_id", "model_type", "tie_word_embeddings")
_VISION = ("video_token_id", "vision_start_token_id", "vision_end_token_id")


def publish(saved: Path, folder: Path, family: VisionFamily) -> Path:
    """Write a saved model as a published folder."""
    folder.mkdir()
    _write_weights(saved, folder, family)
    _write(folder / "config.json", _config(_read(saved / "config.json"), family))
    template = (saved / "chat_template.jinja").read_text()
    _write(folder / "chat_template.json", {"chat_template": template})
    tokens = _read(saved / "tokenizer_config.json") | {"chat_template": template}
    _write(folder / "tokenizer_config.json", tokens)
    (folder / "tokenizer.json").write_bytes((saved / "tokenizer.json").read_bytes())
    _write(folder / "generation_config.json", {"do_sample": True, "temperature": 0.7})
    _write_processors(_read(saved / "processor_config.json")["image_processor"], folder, family)
    return folder


def _write_weights(saved: Path, folder: Path, family: VisionFamily) -> None:
    tensors = load_file(saved / "model.safetensors")
    places: dict[str, str] = {}
    files: list[dict[str, torch.Tensor]] = [{} for _ in range(FILES)]
    for at, (newer, tensor) in enumerate(tensors.items()):
        name = _older(newer) if family == "qwen2_5_vl" else newer
        files[at % FILES][name] = tensor.bfloat16()
        places[name] = f"model-{at % FILES + 1:05d}-of-{FILES:05d}.safetensors"
    for at, tensors_of in enumerate(files):
        save_file(tensors_of, folder / f"model-{at + 1:05d}-of-{FILES:05d}.safetensors")
    total = sum(each.numel() * 2 for each in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    _write(folder / "model.safetensors.index.json", index)


def _older(name: str) -> str:
    return name.replace("model.visual.", "visual.").replace("model.language_model.", "model.")


def _config(values: dict[str, Any], family: VisionFamily) -> dict[str, Any]:
    text, rope = values["text_config"], values["text_config"].pop("rope_parameters")
    text.pop("dtype", None)
    found = {name: values[name] for name in (*_WHOLE, *_VISION) if name in values}
    found["vision_config"] = values["vision_config"]
    found["vision_config"].pop("rope_parameters", None)
    if family == "qwen2_5_vl":
        section = {"mrope_section": rope["mrope_section"], "type": "mrope"}
        top = {key: each for key, each in text.items() if key not in ("model_type", "layer_types")}
        more = {"torch_dtype": "bfloat16", "rope_scaling": section}
        return {**top, **found, **more, "rope_theta": rope["rope_theta"]}
    scaling = {key: each for key, each in rope.items() if key != "rope_theta"}
    text |= {"rope_scaling": scaling, "rope_theta": rope["rope_theta"], "dtype": "bfloat16"}
    return {**found, "text_config": text}


def _write_processors(images: dict[str, Any], folder: Path, family: VisionFamily) -> None:
    size = images["size"]
    names = ("image_mean", "image_std", "patch_size", "temporal_patch_size", "merge_size")
    kept = {name: images[name] for name in names}
    if family == "qwen2_5_vl":
        limits = {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}
        kinds = ("Qwen2VLImageProcessor", "Qwen2_5_VLProcessor")
    else:
        limits, kinds = {"size": size}, ("Qwen2VLImageProcessorFast", "Qwen3VLProcessor")
        video = kept | limits | {"video_processor_type": "Qwen3VLVideoProcessor"}
        _write(folder / "video_preprocessor_config.json", video)
    types = {"image_processor_type": kinds[0], "processor_class": kinds[1]}
    _write(folder / "preprocessor_config.json", kept | limits | types)


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n")
