"""Pictures in prompts of vLLM: a prompt has one placeholder per picture; the engine expands it.

vLLM expands every placeholder token in a prompt, also in ids that are expanded already. The policy
may have sampled this token before a later picture. vLLM caches the features of a picture by its
content, and does not drop them when the weights change.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from vllm import LLM, TokensPrompt
from vllm.config import set_current_vllm_config

from mindrl.batch.prompts import PlacedImage
from mindrl.config.images import ImageConfig
from mindrl.pictures.folder import PictureFolder
from mindrl.rollout.vllm.placeholders import drawn_places, with_placeholders

_PROCESSOR_CACHE_GIB = 0.1
"""Memory for processed pictures; vLLM's default is 4 GiB for each engine."""
_INERT = 0
"""A token of text."""


class EnginePictures:
    """Opens the pictures of an engine's prompts."""

    def __init__(self, config: ImageConfig) -> None:
        """Set where pictures are."""
        self.config, self.folder = config, PictureFolder(config)

    def options(self) -> Mapping[str, Any]:
        """Return the engine's options for pictures."""
        return {
            "limit_mm_per_prompt": {"image": self.config.max_per_prompt, "video": 0},
            "mm_processor_cache_gb": _PROCESSOR_CACHE_GIB,
        }

    def prompt(self, token_ids: Sequence[int], images: Sequence[PlacedImage]) -> TokensPrompt:
        """Return a prompt for the engine: one token in place of each picture's tokens."""
        if not images:
            return TokensPrompt(prompt_token_ids=[*token_ids])
        pictures = [self.folder.picture(each.number) for each in images]
        return TokensPrompt(
            prompt_token_ids=with_placeholders(token_ids, images),
            multi_modal_data={"image": pictures},
        )

    def request(
        self, engine: Any, token_ids: Sequence[int], images: Sequence[PlacedImage]
    ) -> TokensPrompt | Mapping[str, Any]:
        """Return the prompt of a request; its tokens may be drawn ones.

        An image token sampled before a picture is replaced by a text token while `engine`, an
        LLMEngine, expands the placeholders.
        """
        image_token = engine.model_config.hf_config.image_token_id
        drawn = drawn_places(token_ids, images, image_token)
        if not drawn:
            return self.prompt(token_ids, images)
        inert = [*token_ids]
        for place in drawn:
            inert[place] = _INERT
        (rendered,) = engine.renderer.render_cmpl([self.prompt(inert, images)])
        expanded = [*rendered["prompt_token_ids"]]
        for place in drawn:
            expanded[place] = image_token
        return {**rendered, "prompt_token_ids": expanded}

    def forget(self, llm: LLM) -> None:
        """Drop features of older weights, and recompute the statistics of pixels.

        No weight file has these; the engine's copy starts as noise, like all dummy weights.
        """
        engine = llm.llm_engine
        engine.reset_encoder_cache()
        worker: Any = engine.model_executor.driver_worker.worker
        norm: Any = getattr(worker.model_runner.get_model().visual, "input_norm", None)
        if norm is None:
            # vLLM 0.23 has no such module: its image processor normalises.
            return
        build = import_module(type(norm).__module__).build_mm_input_norm
        with set_current_vllm_config(engine.vllm_config):
            right = build(engine.vllm_config.model_config)
        norm.load_state_dict(right.state_dict())
