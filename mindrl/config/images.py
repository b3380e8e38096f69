"""Keys `data_config.images`: pictures of rows and environments, for a model with a tower."""

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from mindrl.config.section import SECTION, Mib, PathText

_Pixels = Annotated[int, Field(ge=1, le=178_956_970)]


@dataclass(frozen=True, kw_only=True, config=SECTION)
class ImageConfig:
    """Pictures: where they are kept, and their limits."""

    folder: PathText = ".cache/images"
    """Folder in which pictures of rows and environments are kept, each under a number of its
    content; one that a row names by path is a link. Workers open them there: all machines of a run
    need it."""
    max_per_prompt: Annotated[int, Field(ge=1, le=64)] = 4
    """Most pictures of a prompt; a row with more is refused. Also of a conversation, with those of
    its environment; an answer with more ends it."""
    max_pixels: _Pixels = 1_003_520
    """Most pixels that a picture has for the model; larger ones are scaled down. Those of the model
    folder's image processor apply too."""
    max_file_pixels: _Pixels = 89_478_485
    """Most pixels of a file; one with more is refused before it is decoded."""
    cache_mib: Mib = 512
    """Memory for opened pictures in each process; those used last stay."""
    features_mib: Mib = 1024
    """Memory of the host in each process for features of pictures, with
    `actor_config.freeze_vision_tower`; those used last stay, others are computed again."""
