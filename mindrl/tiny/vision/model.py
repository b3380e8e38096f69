"""A small vision-language network: the tiny chat model's tokenizer and sizes, with a tower."""

from pathlib import Path
from typing import Any, TypeAlias

import torch
from tokenizers import AddedToken
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLImageProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from mindrl.tiny.chat_model import build_tokenizer
from mindrl.tiny.vision.habits import VisionFamily

TinyVisionModel: TypeAlias = Qwen2_5_VLForConditionalGeneration | Qwen3VLForConditionalGeneration

_TOKENS = {
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
}
_CHAT_TEMPLATE = (
    "{%- for message in messages -%}{{- '<|im_start|>' + message['role'] + '\\n' -}}"
    "{%- if message['content'] is string -%}{{- message['content'] -}}"
    "{%- else -%}{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}"
    "{%- else -%}{{- part['text'] -}}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}{{- '<|im_end|>\\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
_PATCHES: dict[VisionFamily, int] = {"qwen2_5_vl": 14, "qwen3_vl": 16}
_MERGED = 2
"""Patches of a token, in each direction."""
_MOST_TOKENS = 16
"""Most tokens of a picture."""


def build_vision_tokenizer() -> PreTrainedTokenizerFast:
    """Build the tiny chat model's tokenizer with tokens and a template of pictures."""
    tokenizer = build_tokenizer()
    tokenizer.add_tokens([AddedToken(each, special=True) for each in _TOKENS.values()])
    tokenizer.chat_template = _CHAT_TEMPLATE
    return tokenizer


def image_processor(family: VisionFamily) -> Qwen2VLImageProcessor:
    """Return the image processor of a family: a picture has 1 to 16 tokens."""
    patch = _PATCHES[family]
    token_pixels = (patch * _MERGED) ** 2
    size = {"shortest_edge": token_pixels, "longest_edge": _MOST_TOKENS * token_pixels}
    return Qwen2VLImageProcessor(size=size, patch_size=patch, merge_size=_MERGED)


def build_vision_model(
    tokenizer: PreTrainedTokenizerFast, seed: int, family: VisionFamily = "qwen2_5_vl"
) -> TinyVisionModel:
    """Initialise the network from the seed: a decoder of 2 layers, and a tower of 2."""
    torch.manual_seed(seed)
    ids = {name: tokenizer.convert_tokens_to_ids(text) for name, text in _TOKENS.items()}
    text: dict[str, Any] = {
        "vocab_size": -(-len(tokenizer) // 64) * 64,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.08,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    tower: dict[str, Any] = {
        "depth": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 2,
        "patch_size": _PATCHES[family],
        "spatial_merge_size": _MERGED,
        "out_hidden_size": 128,
        "initializer_range": 0.08,
    }
    shared = {"tie_word_embeddings": False, "dtype": torch.float32, **ids}
    model: TinyVisionModel
    if family == "qwen2_5_vl":
        rope |= {"mrope_section": [4, 6, 6]}
        tower |= {"window_size": 112, "fullatt_block_indexes": [1]}
        text |= {"rope_parameters": rope}
        config = Qwen2_5_VLConfig(text_config=text, vision_config=tower, **shared)
        model = Qwen2_5_VLForConditionalGeneration(config)
    else:
        rope |= {"mrope_section": [6, 5, 5], "mrope_interleaved": True}
        tower |= {"num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}
        text |= {"rope_parameters": rope, "head_dim": 32}
        newer = Qwen3VLConfig(text_config=text, vision_config=tower, **shared)
        model = Qwen3VLForConditionalGeneration(newer)
    return model.float()


def save_vision_model(
    model: TinyVisionModel,
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
    family: VisionFamily = "qwen2_5_vl",
) -> None:
    """Write a model folder: weights, tokenizer, and the processors that transformers looks for."""
    from transformers import (  # noqa: PLC0415 - needs torchvision
        Qwen2_5_VLProcessor,
        Qwen2VLVideoProcessor,
        Qwen3VLProcessor,
        Qwen3VLVideoProcessor,
    )

    images = image_processor(family)
    videos = {"qwen2_5_vl": Qwen2VLVideoProcessor, "qwen3_vl": Qwen3VLVideoProcessor}[family]
    whole = {"qwen2_5_vl": Qwen2_5_VLProcessor, "qwen3_vl": Qwen3VLProcessor}[family]
    model.save_pretrained(folder)
    made = whole(
        images,
        tokenizer,
        videos(size=dict(images.size), patch_size=images.patch_size),
        chat_template=tokenizer.chat_template,
    )
    made.save_pretrained(folder)
