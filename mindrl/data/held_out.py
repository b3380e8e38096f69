"""Select test prompts, and exclude them from training."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256

from mindrl.config.data import DataConfig
from mindrl.data.prompts import PromptSet, joined
from mindrl.errors import DataError


def hold_out(
    sets: Sequence[PromptSet], fraction: float, seed: int
) -> tuple[tuple[PromptSet, ...], PromptSet]:
    """Split training sets into training prompts and test prompts.

    From each set, the fraction of distinct prompts with the smallest hashes of seed and text is
    held out: equal prompts stay together, and the order of the rows does not matter.

    Raises:
        DataError: A set has too few distinct prompts to be split.
    """
    trained, tests = [], []
    for each in sets:
        texts = sorted(
            {prompt.identity for prompt in each.prompts}, key=lambda text: _hash(seed, text)
        )
        count = max(1, round(fraction * len(texts)))
        if count >= len(texts):
            raise DataError(
                f"{each.path}: data_config.held_out_fraction={fraction:g} of {len(texts)} "
                "different prompts leaves none for training"
            )
        trained.append(each.without({*texts[:count]}))
        held_out = each.without({*texts[count:]})
        # Its other rows are reported with the training set.
        path = f"{fraction:g} of {each.path}"
        tests.append(replace(held_out, path=path, tests=0, dropped=0, filtered=0, note=""))
    return tuple(trained), joined(tests)


def without_tests(
    data: DataConfig, train: Sequence[PromptSet], tests: Mapping[str, PromptSet]
) -> tuple[PromptSet, ...]:
    """Apply `data_config.test_overlap_policy` to training prompts that are also test prompts.

    Raises:
        DataError: The policy is "error" and there is overlap, or no training prompt is left.
    """
    texts = {prompt.identity for test in tests.values() for prompt in test.prompts}
    if data.test_overlap_policy == "drop":
        left = tuple(each.without(texts) for each in train)
        if empty := [each.path for each in left if not each.prompts]:
            raise DataError(
                f"{empty[0]}: no prompts are left, because all of them are also test prompts"
            )
        return left
    if data.test_overlap_policy == "error":
        trained_on = {prompt.identity for each in train for prompt in each.prompts}
        for name, test in tests.items():
            _refuse_overlap(name, test, trained_on)
    return tuple(train)


def _refuse_overlap(name: str, test: PromptSet, trained_on: set[str]) -> None:
    again = [prompt for prompt in test.prompts if prompt.identity in trained_on]
    if again:
        raise DataError(
            f"{test.path}: {len(again)} of the {len(test.prompts)} {name} prompts are "
            f"also training prompts, the first in row {again[0].uid} (from 0). Set "
            "data_config.test_overlap_policy=drop to remove them from training, or allow "
            "to keep them"
        )


def _hash(seed: int, text: str) -> bytes:
    return sha256(f"{seed}/{text}".encode()).digest()
