r"""A tiny vision-language model that counts the squares of a picture carelessly.

It is taught three habits of answering, by a loop of its own:

- careful: "\boxed{3}", the number of squares
- careless: "\boxed{4}", one too many; the most common, so greedy answers are wrong
- hasty:   a number from 1 to 6, without a look at the picture

Reinforcement learning has the careful habit to find.
"""

import dataclasses
import random
from pathlib import Path

from mindrl.errors import ModelError
from mindrl.observability.terminal import say
from mindrl.tiny.making import new_folder
from mindrl.tiny.recipe import hashed_record, is_up_to_date
from mindrl.tiny.vision.habits import COUNTING_FAMILIES, CounterRecipe, VisionFamily

_PACKAGES = ("torch", "torchvision", "transformers", "tokenizers", "pillow")


def make_counter(output: Path, seed: int, family: VisionFamily = COUNTING_FAMILIES[0]) -> bool:
    """Make the counter unless it is up to date; returns whether it did.

    Raises:
        MindrlError: The folder is not one of ours, or the model does not learn enough.
    """
    recipe = CounterRecipe(family=family)
    sources = sorted(Path(__file__).parent.glob("*.py"))
    record = hashed_record({"seed": seed}, dataclasses.asdict(recipe), sources, _PACKAGES)
    if is_up_to_date(output, record):
        return False
    # Imported late: it takes longer than to find that all is up to date.
    from mindrl.tiny.vision.lessons import Lessons  # noqa: PLC0415
    from mindrl.tiny.vision.model import (  # noqa: PLC0415
        build_vision_model,
        build_vision_tokenizer,
        save_vision_model,
    )

    with new_folder(output, record) as built:
        tokenizer = build_vision_tokenizer()
        model = build_vision_model(tokenizer, seed, family)
        lessons = Lessons(tokenizer, recipe)
        lessons.teach(model, random.Random(seed))
        skill = lessons.skill(model, random.Random(seed + 1))
        say(f"counting skill {skill:.3f}")
        if skill < recipe.skill_target:
            raise ModelError(f"seed {seed}: counting skill {skill:.3f} < {recipe.skill_target}")
        save_vision_model(model, tokenizer, built, family)
        record["result"] = {"skill": skill}
    return True
