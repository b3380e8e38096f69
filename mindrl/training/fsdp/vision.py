"""A vision-language model of transformers: its tower reads each picture of a pack once.

Sequences name pictures by number; this rank opens their files. A picture's features replace the
embeddings of its tokens, which are known by their place in the prompt: the token itself may also be
sampled. So the decoder is called with embeddings, and transformers' own forward is not used.

Tensor-parallel ranks cut the decoder, context-parallel ranks the tokens; each has the whole tower
and reads all pictures of the pack.

Shapes: S tokens of a pack, H hidden size, F features (tokens of all pictures of a pack).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import AutoModelForImageTextToText

from mindrl.config.images import ImageConfig
from mindrl.errors import DataError
from mindrl.models.description import ModelDescription
from mindrl.models.other_family import OtherFamily, VisionPart
from mindrl.models.vision import file_name, module_name
from mindrl.pictures.folder import PictureFolder
from mindrl.pictures.patches import Patches, PatchMaker
from mindrl.training.archon.network import NetworkSettings, StagePart
from mindrl.training.fsdp.kept_features import Features, KeptFeatures
from mindrl.training.fsdp.network import ATTENTION, HuggingFaceNetwork, built_on_meta
from mindrl.training.fsdp.positions import TokenGrid, grid_positions
from mindrl.training.packs import Pack


@dataclass(frozen=True, kw_only=True, eq=False)
class _Seen:
    """The pictures of a pack."""

    numbers: list[int]
    """Each picture once."""
    patches: dict[int, Patches]
    """Of the pictures without kept features."""
    kept: dict[int, Features]
    positions_31S: Tensor
    tokens_F: Tensor
    """Place among this rank's tokens of each token of a picture, in ascending order."""
    features_F: Tensor
    """Index of its feature among those of all pictures of the pack."""


class VisionNetwork(HuggingFaceNetwork):
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
        assert model.other is not None
        assert model.other.vision is not None, "chosen by the model's description"
        self._vision = (model.other.vision, PatchMaker(folder), PictureFolder(images))
        self.kept = KeptFeatures(images.features_mib << 20)
        super().__init__(folder, model, part, settings)
        if self._part_names.is_frozen:
            self.network.model.visual.requires_grad_(False)

    def built(self, folder: str) -> Any:
        """Return the model on the meta device; the tower has an attention of its own."""
        attention = {"text_config": ATTENTION, "vision_config": "sdpa"}
        return built_on_meta(folder, AutoModelForImageTextToText, attention)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters under the folder's names; a tied one once."""
        part, begin = self._part_names, f"{prefix}." if prefix else ""
        for name, parameter in super().named_parameters("", recurse, remove_duplicate):
            yield begin + file_name(part, name), parameter

    @cached_property
    def in_modules(self) -> OtherFamily:
        """The family with transformers' names, which differ from those of older folders."""
        here, other = partial(module_name, self._part_names), self.other
        return replace(
            other,
            tensors=tuple((here(name), shape) for name, shape in other.tensors),
            embedding=here(other.embedding),
            head=here(other.head),
            styles=tuple((here(path), style) for path, style in other.styles),
        )

    def last_hidden(self, given: Tensor, pack: Pack[Any]) -> Tensor:
        """Return the decoder's output for tokens [1, S] and the pictures of their sequences."""
        seen, device = self._seen(pack), given.device
        read = self._kept_outputs if self._part_names.is_frozen else self._outputs
        features_FH, *inner = read(seen, device)
        embedded_1SH = self.network.get_input_embeddings()(given)
        more: dict[str, Any] = {}
        if len(seen.tokens_F):
            tokens_F, features_F = seen.tokens_F.to(device), seen.features_F.to(device)
            # Several sequences show a picture: indexing adds their gradients in no fixed order.
            chosen_FH, *inner = (each.index_select(0, features_F) for each in (features_FH, *inner))
            chosen_1FH = chosen_FH[None].to(embedded_1SH.dtype)
            embedded_1SH = embedded_1SH.index_copy(1, tokens_F, chosen_1FH)
            if inner:
                is_image_1S = torch.zeros_like(given, dtype=torch.bool)
                is_image_1S[:, tokens_F] = True
                more = {
                    "visual_pos_masks": is_image_1S,
                    "deepstack_visual_embeds": inner,
                }
        elif not self._part_names.is_frozen:
            # Others use their tower in this pass: FSDP2 gathers its weights from all ranks.
            for each in (features_FH, *inner):
                embedded_1SH = embedded_1SH + 0.0 * each.sum()
        hidden_1SH: Tensor = self.network.model.language_model(
            inputs_embeds=embedded_1SH,
            position_ids=seen.positions_31S.to(device),
            use_cache=False,
            **more,
        ).last_hidden_state
        return hidden_1SH

    def _outputs(self, seen: _Seen, device: torch.device) -> tuple[Tensor, ...]:
        """Return the tower's output for the pictures with patches, or else for a blank one.

        The outputs [F, H] of its inner layers, which go to the decoder's first layers, follow.
        """
        maker = self._vision[1]
        patches = Patches.joined([*seen.patches.values()] or [maker.blank()])
        found = self.network.model.get_image_features(
            maker.normalised(patches.pixels_PD.to(device)), patches.grids_N3.to(device)
        )
        inner = getattr(found, "deepstack_features", None) or ()
        return _whole(found.pooler_output), *map(_whole, inner)

    @torch.no_grad()
    def _kept_outputs(self, seen: _Seen, device: torch.device) -> tuple[Tensor, ...]:
        """Return the same of a tower that does not learn: each picture is read once.

        A collective: the tower's weights are gathered if a rank has a picture that is not kept.
        """
        lacking = torch.tensor(len(seen.patches), device=device)
        dist.all_reduce(lacking, op=dist.ReduceOp.MAX)
        found = dict(seen.kept)
        if int(lacking):
            made, first = self._outputs(seen, device), 0
            for number, patches in seen.patches.items():
                end = first + self._tokens(patches.grids_N3)
                outputs = tuple(each[first:end] for each in made)
                found[number] = Features(grids_13=patches.grids_N3, outputs=outputs)
                self.kept.keep(number, found[number])
                first = end
        if not seen.numbers:
            return (torch.zeros(0, device=device),)
        each = zip(*(found[number].outputs for number in seen.numbers), strict=True)
        return tuple(torch.cat([part.to(device) for part in parts]) for parts in each)

    @property
    def _part_names(self) -> VisionPart:
        return self._vision[0]

    def _seen(self, pack: Pack[Any]) -> _Seen:
        """Open the pictures of a pack, and place their tokens."""
        assert pack.attending.shared is None, "validated: prompts are not shared"
        source = pack.source
        images, merge = source.images(), self._vision[1].processor.merge_size
        numbers = [*dict.fromkeys(number for row in images for number, _ in row)]
        kept = {number: known for number in numbers if (known := self.kept.of(number))}
        patches = {number: self._patches(number) for number in numbers if number not in kept}
        sizes = {number: each.grids_13 for number, each in kept.items()}
        sizes |= {number: each.grids_N3 for number, each in patches.items()}
        counts = [self._tokens(sizes[number]) for number in numbers]
        offsets = dict(zip(numbers, accumulate(counts, initial=0), strict=False))
        positions_3BT = torch.zeros(3, *source.tokens_BT.shape, dtype=torch.int64)
        features_BT = torch.full(source.tokens_BT.shape, _NO_FEATURE)
        for row, placed in enumerate(images):
            length = int(source.lengths_B[row])
            grids = [_token_grid(first, sizes[number], merge) for number, first in placed]
            self._check(source.tokens_BT[row], grids)
            positions_3BT[:, row, :length] = grid_positions(length, grids)
            for (number, _), grid in zip(placed, grids, strict=True):
                features = offsets[number] + torch.arange(grid.tokens)
                features_BT[row, grid.first : grid.first + grid.tokens] = features
        # Padding has the positions of some token, and no feature.
        places_S, is_inside_S = pack.place_S.clamp(min=0), pack.place_S >= 0
        features_S = torch.where(is_inside_S, features_BT.flatten()[places_S], _NO_FEATURE)
        tokens_F = torch.nonzero(features_S != _NO_FEATURE)[:, 0]
        return _Seen(
            numbers=numbers,
            patches=patches,
            kept=kept,
            positions_31S=positions_3BT.flatten(1)[:, None, places_S],
            tokens_F=tokens_F,
            features_F=features_S[tokens_F],
        )

    def _tokens(self, grids_N3: Tensor) -> int:
        return int(grids_N3.prod(dim=1).sum()) // int(self._vision[1].processor.merge_size) ** 2

    def _patches(self, number: int) -> Patches:
        _, maker, pictures = self._vision
        return maker.patches(pictures.picture(number))

    def _check(self, tokens_T: Tensor, grids: Sequence[TokenGrid]) -> None:
        """Refuse a sequence that has no tokens of a picture at the place of the picture."""
        for grid in grids:
            inside = tokens_T[grid.first : grid.first + grid.tokens]
            if len(inside) < grid.tokens or bool((inside != self._part_names.image_token).any()):
                raise DataError(
                    f"a picture of {grid.tokens} tokens does not stand at position {grid.first} of "
                    "its sequence; is the image processor that of the rows?"
                )


_NO_FEATURE = -1


def _token_grid(first: int, grids_13: Tensor, merge: int) -> TokenGrid:
    _, rows, columns = grids_13[0].tolist()
    return TokenGrid(first, rows // merge, columns // merge)


def _whole(features: Any) -> Tensor:
    """Return features of several pictures as one tensor."""
    return features if isinstance(features, Tensor) else torch.cat([*features])
