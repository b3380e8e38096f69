"""A vision-language model of transformers; its decoder takes embeddings with pictures in them.

Transformers' own forward is not used: it finds the tokens of pictures by their id.

Shapes: S tokens of a pack, H hidden size.
"""

from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText

from mindrl.config.images import ImageConfig
from mindrl.models.description import ModelDescription
from mindrl.models.other_family import OtherFamily
from mindrl.models.vision import module_name
from mindrl.training.archon.network import NetworkSettings, StagePart
from mindrl.training.fsdp.network import ATTENTION, HuggingFaceNetwork
from mindrl.training.packs import Pack
from mindrl.training.transformers_modules import built_on_meta
from mindrl.training.vision.tower import Tower, WithTower


class VisionNetwork(WithTower, HuggingFaceNetwork):
    """A decoder with a vision tower."""

    def __init__(
        self,
        folder: str,
        model: ModelDescription,
        part: StagePart,
        settings: NetworkSettings,
        images: ImageConfig,
    ) -> None:
        """Build the model as `HuggingFaceNetwork` does; `images` has the folder of the pictures."""
        assert model.vision is not None, "chosen by the model's description"
        self._names = model.vision
        super().__init__(folder, model, part, settings)
        self.tower = Tower(folder, self._names, images, self.network.model.visual)

    def built(self, folder: str) -> Any:
        """Return the model on the meta device; the tower has an attention of its own."""
        attention = {"text_config": ATTENTION, "vision_config": "sdpa"}
        return built_on_meta(folder, AutoModelForImageTextToText, attention)

    @cached_property
    def in_modules(self) -> OtherFamily:
        """The family with transformers' names, which differ from those of older folders."""
        here, other = partial(module_name, self._names), self.other
        return replace(
            other,
            tensors=tuple((here(name), shape) for name, shape in other.tensors),
            embedding=here(other.embedding),
            head=here(other.head),
            styles=tuple((here(path), style) for path, style in other.styles),
        )

    def last_hidden(self, given: Tensor, pack: Pack[Any]) -> Tensor:
        """Return the decoder's output for tokens [1, S] and the pictures of their sequences."""
        seen = self.tower.see(pack, given.device)
        embedded_1SH = seen.into(self.network.get_input_embeddings()(given))
        more: dict[str, Any] = {}
        if inner := seen.features[1:]:
            is_image_1S = torch.zeros_like(given, dtype=torch.bool)
            is_image_1S[:, seen.tokens_F] = True
            more = {"visual_pos_masks": is_image_1S, "deepstack_visual_embeds": inner}
        hidden_1SH: Tensor = self.network.model.language_model(
            inputs_embeds=embedded_1SH,
            position_ids=seen.positions_31S,
            use_cache=False,
            **more,
        ).last_hidden_state
        return hidden_1SH
