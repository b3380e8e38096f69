"""Patches of pictures by the image processor of a model folder, as the model's tower reads them.

Patches stay uint8 on the host; the tower's device normalises them. Shapes: P patches of a picture,
D = 3 colours x frames x height x width of a patch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
from PIL import Image
from torch import Tensor

from mindrl.errors import ModelError


@dataclass(frozen=True, kw_only=True, eq=False)
class Patches:
    """Patches of pictures, in the order of the pictures."""

    pixels_PD: Tensor
    """uint8."""
    grids_N3: Tensor
    """int64; frames, rows and columns of patches of each picture."""

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Concatenate the patches of several pictures."""
        return cls(
            pixels_PD=torch.cat([each.pixels_PD for each in parts]),
            grids_N3=torch.cat([each.grids_N3 for each in parts]),
        )


class PatchMaker:
    """The image processor of a model folder."""

    def __init__(self, folder: str) -> None:
        """Set the folder; the processor is loaded at its first use."""
        self.folder = folder

    @cached_property
    def processor(self) -> Any:
        """The processor of transformers, with torchvision: that of the rollout engine too.

        Raises:
            ModelError: The folder has no processor of the kind of Qwen2-VL.
        """
        # Imports torchvision.
        from transformers import AutoImageProcessor  # noqa: PLC0415

        try:
            found = AutoImageProcessor.from_pretrained(self.folder, local_files_only=True)
        except (OSError, ValueError, ImportError) as error:
            raise ModelError(f"{self.folder}: no image processor ({error})") from error
        lacking = [name for name in _NEEDED if not hasattr(found, name)]
        if lacking or not (found.do_rescale and found.do_normalize):
            raise ModelError(
                f"{self.folder}: its image processor, {type(found).__name__}, must be of the kind "
                "of Qwen2-VL, with do_rescale and do_normalize"
            )
        return found

    @property
    def name(self) -> str:
        """Class of the processor, for the record of a run."""
        return type(self.processor).__name__

    def tokens(self, size: tuple[int, int]) -> int:
        """Return the number of tokens of a picture of this width and height."""
        width, height = size
        patches = self.processor.get_number_of_image_patches(height, width)
        return int(patches) // int(self.processor.merge_size) ** 2

    def patches(self, image: Image.Image) -> Patches:
        """Cut an RGB picture into patches."""
        found = self.processor(
            images=[image], do_rescale=False, do_normalize=False, return_tensors="pt"
        )
        pixels_PD = found["pixel_values"]
        assert pixels_PD.dtype == torch.uint8, "neither rescaled nor normalised"
        return Patches(pixels_PD=pixels_PD, grids_N3=found["image_grid_thw"])

    def blank(self) -> Patches:
        """Return the patches of the smallest white picture."""
        merge, patch = self.processor.merge_size, self.processor.patch_size
        width = 3 * self.processor.temporal_patch_size * patch**2
        return Patches(
            pixels_PD=torch.full((merge**2, width), 255, dtype=torch.uint8),
            grids_N3=torch.tensor([[1, merge, merge]]),
        )

    def normalised(self, pixels_PD: Tensor) -> Tensor:
        """Return patches in the tower's unit, float32, on their device."""
        mean, deviation = (
            torch.tensor(values, device=pixels_PD.device)[:, None] / self.processor.rescale_factor
            for values in (self.processor.image_mean, self.processor.image_std)
        )
        colours = pixels_PD.float().view(len(pixels_PD), 3, -1)
        normalised_PD: Tensor = ((colours - mean) / deviation).view(pixels_PD.shape)
        return normalised_PD


_NEEDED = ("merge_size", "patch_size", "temporal_patch_size", "get_number_of_image_patches")
