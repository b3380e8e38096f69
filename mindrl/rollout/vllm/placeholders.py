"""Prompts with pictures as engines take them, compared with those that are trained on."""

from collections.abc import Sequence

from mindrl.batch.prompts import PlacedImage


def with_placeholders(token_ids: Sequence[int], images: Sequence[PlacedImage]) -> list[int]:
    """Return token ids with the first token of each picture only."""
    left_out = {
        place for each in images for place in range(each.first + 1, each.first + each.tokens)
    }
    return [token for place, token in enumerate(token_ids) if place not in left_out]


def drawn_places(
    token_ids: Sequence[int], images: Sequence[PlacedImage], image_token: int
) -> list[int]:
    """Return the places before the last picture at which the policy has drawn the image token."""
    shown = {place for each in images for place in range(each.first, each.first + each.tokens)}
    before = enumerate(token_ids[: max(shown, default=0)])
    return [place for place, token in before if token == image_token and place not in shown]


def require_same(found: Sequence[int] | None, token_ids: Sequence[int]) -> None:
    """Compare the prompt that the engine has read with the one that is trained on.

    Raises:
        RuntimeError: They differ.
    """
    if found is None or [*found] != [*token_ids]:
        length = None if found is None else len(found)
        raise RuntimeError(
            f"vLLM expanded a prompt with pictures to {length} tokens, other than the "
            f"{len(token_ids)} that are trained on; does the engine use another image processor?"
        )
