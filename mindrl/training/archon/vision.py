"""A decoder of mindrl with a vision tower of transformers: Qwen2.5-VL and Qwen3-VL.

Shapes: S tokens of this rank, F frequencies, also tokens of pictures, H hidden size.
"""

from dataclasses import replace
from typing import Any, Self

from torch import Tensor
from transformers import AutoModel

from mindrl.config.images import ImageConfig
from mindrl.models.decoder import logical_shapes
from mindrl.models.description import ModelDescription
from mindrl.training.archon.collectives import copied
from mindrl.training.archon.network import Network, NetworkSettings, StagePart
from mindrl.training.given_network import deal_out
from mindrl.training.packs import Pack
from mindrl.training.rotary import rotary_axes
from mindrl.training.transformers_modules import (
    built_on_meta,
    fill_buffers,
    refuse_other_tensors,
)
from mindrl.training.vision.tower import SeenPictures, Tower, WithTower


class SeeingNetwork(WithTower, Network):
    """A decoder with its head and a tower, on the meta device; it is not cut into stages."""

    def __init__(
        self,
        folder: str,
        model: ModelDescription,
        part: StagePart,
        settings: NetworkSettings,
        images: ImageConfig,
    ) -> None:
        """Build the model; `images` has the folder of the pictures.

        Raises:
            ModelError: transformers cannot build the tower, or the files have other tensors.
        """
        assert model.vision is not None, "chosen by the model's description"
        super().__init__(model, part, settings)
        self._folder, self._names = folder, model.vision
        self._axes_F = rotary_axes(self._names)
        self.visual: Any = built_on_meta(folder, AutoModel, "sdpa", "vision_config")
        refuse_other_tensors(
            (folder, "mindrl's decoder and transformers' tower"),
            self,
            logical_shapes(model, head=settings.head),
        )
        if self.parallel.size > 1:
            whole = {name: None for name, _ in self.visual.named_parameters()}
            deal_out(self.visual, whole, self.parallel, lambda *_: False)
        self.tower = Tower(folder, self._names, images, self.visual)

    @property
    def layers(self) -> list[Any]:
        """Layers of the tower, then of the decoder."""
        return [*self.visual.blocks, *super().layers]

    def to_empty(self, *, device: Any, recurse: bool = True) -> Self:
        """Allocate the weights, and compute the buffers of the tower."""
        super().to_empty(device=device, recurse=recurse)
        fill_buffers(self._folder, self.visual)
        return self

    def forward(self, given: Tensor, pack: Pack[Any]) -> Tensor:
        """Turn tokens [1, S] and the pictures of their sequences into hidden states [1, S, H]."""
        seen = self._of_rank(self.tower.see(pack, given.device), given.size(1))
        embedded_1SH = seen.into(self.model.embed_tokens(given))
        positions_FS = seen.positions_31S[:, 0].float()[self._axes_F]
        angles_SF = positions_FS.T * self.frequencies_F.to(given.device)
        return self.through(embedded_1SH, angles_SF, pack, seen.after_layers)

    def _of_rank(self, seen: SeenPictures, tokens: int) -> SeenPictures:
        """Return the pictures in this tensor-parallel rank's part of the hidden states' tokens."""
        if not self.parallel.is_cut:
            return seen
        count = tokens // self.parallel.size
        is_own_F = seen.tokens_F // count == self.parallel.rank
        # Each rank has its tokens' part of the gradient.
        features = (copied(each, self.parallel.group)[is_own_F] for each in seen.features)
        return replace(seen, tokens_F=seen.tokens_F[is_own_F] % count, features=tuple(features))
