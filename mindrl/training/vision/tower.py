"""The vision tower of a model, of transformers: it reads each picture of a pack once.

Sequences name pictures by number; this rank opens their files. A picture's features replace the
embeddings of its tokens, which are known by their place in the prompt: the token itself may also be
sampled. The outputs of inner layers, if the family has them, are added after the decoder's first
layers.

Tensor-parallel ranks cut the decoder, context-parallel ranks the tokens; each has the whole tower
and reads all pictures of the pack.

Shapes: S tokens of a pack, H hidden size, F tokens of pictures among them; in a tower's output,
tokens of all pictures of the pack.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mindrl.config.images import ImageConfig
from mindrl.errors import DataError
from mindrl.models.other_family import VisionPart
from mindrl.models.vision import file_name
from mindrl.pictures.folder import PictureFolder
from mindrl.pictures.patches import Patches, PatchMaker
from mindrl.training.packs import Pack
from mindrl.training.vision.kept_features import Features, KeptFeatures
from mindrl.training.vision.positions import TokenGrid, grid_positions


@dataclass(frozen=True, kw_only=True, eq=False)
class SeenPictures:
    """A tower's output for the pictures of a pack, on the device."""

    positions_31S: Tensor
    tokens_F: Tensor
    """Place among this rank's tokens of each token of a picture, in ascending order."""
    features: tuple[Tensor, ...]
    """[F, H] each: output of the tower for these tokens, then of its inner layers; empty if this
    rank's part of the pack has no picture."""
    nothing: Tensor | None
    """0-dim zero that gives the weights of a trained tower a gradient if this rank has no picture:
    other ranks use the tower in this pass, and FSDP2 gathers its weights from all ranks."""

    def into(self, embedded_1SH: Tensor) -> Tensor:
        """Return the embeddings of the tokens, replaced by features for those of pictures."""
        if self.features:
            return embedded_1SH.index_copy(1, self.tokens_F, _as(self.features[0], embedded_1SH))
        return embedded_1SH if self.nothing is None else embedded_1SH + self.nothing

    @property
    def after_layers(self) -> list[Callable[[Tensor], Tensor]]:
        """Functions that add the inner outputs to the hidden states, one after each first layer."""
        return [partial(self._added, each) for each in self.features[1:]]

    def _added(self, inner_FH: Tensor, hidden_1SH: Tensor) -> Tensor:
        return hidden_1SH.index_add(1, self.tokens_F, _as(inner_FH, hidden_1SH))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Placed:
    """The pictures of a pack, before the tower reads them; on the host."""

    numbers: list[int]
    """Each picture once."""
    patches: dict[int, Patches]
    """Patches of the pictures without kept features."""
    kept: dict[int, Features]
    positions_31S: Tensor
    tokens_F: Tensor
    """As in `SeenPictures`."""
    features_F: Tensor
    """Index of each token's feature among those of all pictures of the pack."""


class Tower:
    """A tower with the pictures that it reads."""

    def __init__(self, folder: str, part: VisionPart, images: ImageConfig, network: Any) -> None:
        """Freeze the tower's network if it is not trained; `images` has the folder of pictures."""
        self.part, self.network = part, network
        self._maker, self._pictures = PatchMaker(folder), PictureFolder(images)
        self.kept = KeptFeatures(images.features_mib << 20)
        if part.is_frozen:
            network.requires_grad_(False)

    def see(self, pack: Pack[Any], device: torch.device) -> SeenPictures:
        """Read the pictures of a pack.

        A collective over the ranks that share the tower's weights.
        """
        placed = self._placed(pack)
        read = self._kept_outputs if self.part.is_frozen else self._outputs
        outputs, nothing = read(placed, device), None
        tokens_F, features_F = placed.tokens_F.to(device), placed.features_F.to(device)
        if not len(tokens_F):
            if not self.part.is_frozen:
                nothing = torch.stack([0.0 * each.sum() for each in outputs]).sum()
            outputs = ()
        return SeenPictures(
            positions_31S=placed.positions_31S.to(device),
            tokens_F=tokens_F,
            # If sequences share a picture, indexing would add gradients in no fixed order.
            features=tuple(each.index_select(0, features_F) for each in outputs),
            nothing=nothing,
        )

    def _outputs(self, placed: _Placed, device: torch.device) -> tuple[Tensor, ...]:
        """Return the tower's output for the pictures with patches, or else for a blank one.

        The outputs [F, H] of its inner layers follow.
        """
        maker = self._maker
        patches = Patches.joined([*placed.patches.values()] or [maker.blank()])
        pixels_PD = maker.normalised(patches.pixels_PD.to(device)).type(self.network.dtype)
        found = self.network(pixels_PD, grid_thw=patches.grids_N3.to(device))
        return found.pooler_output, *(getattr(found, "deepstack_features", None) or ())

    @torch.no_grad()
    def _kept_outputs(self, placed: _Placed, device: torch.device) -> tuple[Tensor, ...]:
        """Return the same outputs of a frozen tower, which reads each picture once.

        A collective: the tower's weights are gathered if a rank has a picture that is not kept.
        """
        lacking = torch.tensor(len(placed.patches), device=device)
        dist.all_reduce(lacking, op=dist.ReduceOp.MAX)
        found = dict(placed.kept)
        if int(lacking):
            made, first = self._outputs(placed, device), 0
            for number, patches in placed.patches.items():
                end = first + self._tokens(patches.grids_N3)
                outputs = tuple(each[first:end] for each in made)
                found[number] = Features(grids_13=patches.grids_N3, outputs=outputs)
                self.kept.keep(number, found[number])
                first = end
        each = zip(*(found[number].outputs for number in placed.numbers), strict=True)
        return tuple(torch.cat([part.to(device) for part in parts]) for parts in each)

    def _placed(self, pack: Pack[Any]) -> _Placed:
        """Open the pictures of a pack, and place their tokens."""
        assert pack.attending.shared is None, "validated: prompts are not shared"
        source = pack.source
        images, merge = source.images(), self._maker.processor.merge_size
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
        return _Placed(
            numbers=numbers,
            patches=patches,
            kept=kept,
            positions_31S=positions_3BT.flatten(1)[:, None, places_S],
            tokens_F=tokens_F,
            features_F=features_S[tokens_F],
        )

    def _tokens(self, grids_N3: Tensor) -> int:
        return int(grids_N3.prod(dim=1).sum()) // int(self._maker.processor.merge_size) ** 2

    def _patches(self, number: int) -> Patches:
        return self._maker.patches(self._pictures.picture(number))

    def _check(self, tokens_T: Tensor, grids: Sequence[TokenGrid]) -> None:
        """Refuse a sequence that has no tokens of a picture at the place of the picture."""
        for grid in grids:
            inside = tokens_T[grid.first : grid.first + grid.tokens]
            if len(inside) < grid.tokens or bool((inside != self.part.image_token).any()):
                raise DataError(
                    f"a picture of {grid.tokens} tokens does not stand at position {grid.first} of "
                    "its sequence; is the image processor that of the rows?"
                )


class WithTower(nn.Module):
    """A network with a tower; its parameters have the names of the folder's files."""

    _names: VisionPart
    tower: Tower

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters under the folder's names; a tied one once."""
        begin = f"{prefix}." if prefix else ""
        for name, parameter in super().named_parameters("", recurse, remove_duplicate):
            yield begin + file_name(self._names, name), parameter

    def forget(self) -> None:
        """Drop the features of earlier weights."""
        self.tower.kept.clear()


_NO_FEATURE = -1


def _token_grid(first: int, grids_13: Tensor, merge: int) -> TokenGrid:
    _, rows, columns = grids_13[0].tolist()
    return TokenGrid(first, rows // merge, columns // merge)


def _as(features_FH: Tensor, hidden_1SH: Tensor) -> Tensor:
    return features_FH[None].to(hidden_1SH.dtype)
