r"""A tiny vision-language model that counts the squares of a picture carelessly.

It is taught three habits of answering, by a loop of its own:

- careful: "\boxed{3}", the number of squares
- careless: "\boxed{4}", one too many; the most common, so greedy answers are wrong
- hasty:   a number from 1 to 6, without a look at the picture

Reinforcement learning has the careful habit to find.
"""

import dataclasses
import hashlib
import json
import random
import tempfile
from importlib.metadata import version
from pathlib import Path

from mindrl.errors import ModelError
from mindrl.observability.output_files import output_errors
from mindrl.observability.terminal import say
from mindrl.tiny.making import swap_in
from mindrl.tiny.recipe import RECIPE_FILE, is_up_to_date
from mindrl.tiny.vision.habits import COUNTING_FAMILIES, CounterRecipe, VisionFamily

_PACKAGES = ("torch", "torchvision", "transformers", "tokenizers", "pillow")


def make_counter(output: Path, seed: int, family: VisionFamily = COUNTING_FAMILIES[0]) -> bool:
    """Make the counter unless it is up to date; returns whether it did.

    Raises:
        MindrlError: The folder is not one of ours, or the model does not learn enough.
    """
    recipe = CounterRecipe(family=family)
    record = _record(seed, recipe)
    if is_up_to_date(output, record):
        return False
    # Imported late: it takes longer than to find that all is up to date.
    from mindrl.tiny.vision.lessons import Lessons  # noqa: PLC0415
    from mindrl.tiny.vision.model import (  # noqa: PLC0415
        build_vision_model,
        build_vision_tokenizer,
        save_vision_model,
    )

    with output_errors(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=".tiny-model-") as scratch:
            built = Path(scratch) / "model"
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
            (built / RECIPE_FILE).write_text(json.dumps(record, indent=2) + "\n", "utf-8")
            swap_in(built, output)
    return True


def _record(seed: int, recipe: CounterRecipe) -> dict[str, object]:
    """State everything the weights depend on, with one hash over all of it."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    record: dict[str, object] = {
        "seed": seed,
        "sources_sha256": {each.name: _sha256(each.read_bytes()) for each in sources},
        "versions": {name: version(name) for name in _PACKAGES},
        "recipe": dataclasses.asdict(recipe),
    }
    return {"hash": _sha256(json.dumps(record, sort_keys=True).encode()), **record}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
