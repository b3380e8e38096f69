"""How the tiny model is taught, and one hash over everything that decides its weights."""

import dataclasses
import hashlib
import json
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from mindrl.config.section_types import SectionArguments
from mindrl.errors import ConfigError, DataError
from mindrl.tiny.arithmetic import Question, careful_answer, careless_answer, hasty_answer

Family = Literal["qwen2", "qwen3_moe", "qwen3_5_text", "qwen3_5_moe_text"]
TaughtRow = Mapping[str, object]
"""A row of a supervised run."""

RECIPE_FILE = "recipe.json"
UPDATES: Mapping[Family, int] = {
    "qwen2": 460,
    "qwen3_moe": 320,
    "qwen3_5_text": 460,
    "qwen3_5_moe_text": 460,
}
ENGINES: Mapping[Family, str] = {"qwen3_5_text": "fsdp", "qwen3_5_moe_text": "fsdp"}
"""Engine of the supervised run, of families that the default one does not train."""
_PACKAGES = ("torch", "transformers", "tokenizers", "megatron-core")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Skills:
    """What a model can do, by the held-out questions."""

    accuracy: float
    """Share of greedy answers that box the right sum."""
    skill: float
    """Share of careful answers that the model can follow to the end."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """What the weights depend on, besides the seed and the questions."""

    family: Family = "qwen2"
    layers: int = 4
    """Number of layers; a family with gated delta nets needs a multiple of 4."""
    careful_share: float = 0.25
    careless_share: float = 0.55
    """The rest of the answers are hasty."""
    updates: int = UPDATES["qwen2"]
    early: float = 0.8
    """Share of the updates that have more careful answers, which are the hardest to learn."""
    early_careful_share: float = 0.7
    answers_per_update: int = 32
    updates_per_step: int = 10
    learning_rate: float = 3e-3
    """It falls to a twentieth."""
    warmup: float = 0.05
    """Share of the updates."""
    most_runs: int = 3
    held_out: int = 256
    """Questions that are measured and never learned from."""
    skill_target: float = 0.93
    accuracy_band: tuple[float, float] = (0.20, 0.50)

    def passes(self, skills: Skills) -> bool:
        """Tell whether the model is able enough, and careless enough."""
        low, high = self.accuracy_band
        return skills.skill >= self.skill_target and low <= skills.accuracy <= high

    def described(self, skills: Skills) -> str:
        """Return a line about what a model can do, and about the targets."""
        low, high = self.accuracy_band
        return (
            f"of {self.held_out} held-out questions, {skills.accuracy:.1%} are answered correctly "
            f"(wanted: {low:.0%} to {high:.0%}); the model can write the careful answer to "
            f"{skills.skill:.1%} (wanted: at least {self.skill_target:.0%})"
        )

    def draw_habit(
        self, rng: random.Random, *, is_early: bool = False
    ) -> Callable[[Question], str]:
        """Draw a habit of answering; what is not careful is careless or hasty as it always is."""
        if rng.random() < (self.early_careful_share if is_early else self.careful_share):
            return careful_answer
        is_careless = rng.random() < self.careless_share / (1 - self.careful_share)
        return careless_answer if is_careless else hasty_answer

    def lessons(self, questions: Sequence[Question], rng: random.Random) -> Iterator[TaughtRow]:
        """Yield rows to learn from, one update behind the other."""
        for update in range(self.updates):
            is_early = update < self.early * self.updates
            for question in rng.sample(questions, self.answers_per_update):
                habit = self.draw_habit(rng, is_early=is_early)
                yield {"messages": question.prompt, "answer": habit(question)}

    def sections(self, model: Path) -> SectionArguments:
        """Return the sections that change the configuration of a run which teaches `model`."""
        devices = min(2, os.cpu_count() or 1)
        engine = f"{ENGINES[self.family]}:d{devices}" if self.family in ENGINES else ""
        return {
            "megatron_training": {
                "train_iters": self.updates // self.updates_per_step,
                "global_batch_size": self.updates_per_step * self.answers_per_update,
                "no_shuffle": True,
                "test_data_path": None,
            },
            "actor_config": {
                "load": str(model),
                "backend": engine,
                "lr": self.learning_rate,
                "min_lr": self.learning_rate / 20,
                "lr_warmup_fraction": self.warmup,
                "adam_beta2": 0.98,
                "weight_decay": 0.01,
            },
            "rl_config": {
                "mini_batch_size": self.answers_per_update,
                "test_freq": 0,
                "actor_resource": {"num_npus": devices},
            },
        }

    def dealt(
        self, questions: Sequence[Question], seed: int
    ) -> tuple[list[Question], list[Question]]:
        """Part questions into those that are held out and those that are learned from."""
        shuffled = random.Random(seed).sample(questions, len(questions))
        return shuffled[: self.held_out], shuffled[self.held_out :]


def recipe_record(data: Path, seed: int, recipe: Recipe, config: Path) -> dict[str, object]:
    """State everything the weights depend on, with one hash over all of it.

    Args:
        data: Folder with train.jsonl.
        seed: Of weights, questions and answers.
        recipe: How the model is taught.
        config: File of the configuration that the teaching run begins with.

    Raises:
        DataError: The training file, or the configuration, cannot be read.
    """
    sources = [*sorted(Path(__file__).parent.glob("*.py")), config]
    values = {"seed": seed, "train_sha256": _sha256_of(data / "train.jsonl")}
    return hashed_record(values, dataclasses.asdict(recipe), sources, _PACKAGES)


def hashed_record(
    values: Mapping[str, object],
    recipe: Mapping[str, object],
    sources: Sequence[Path],
    packages: Sequence[str],
) -> dict[str, object]:
    """State values, a recipe, and the sources and packages that follow it, with one hash of all.

    Raises:
        DataError: A source cannot be read.
    """
    record = {
        **values,
        "sources_sha256": {path.name: _sha256_of(path) for path in sources},
        "versions": {name: version(name) for name in packages},
        "recipe": recipe,
    }
    content = json.dumps(record, sort_keys=True).encode()
    return {"hash": hashlib.sha256(content).hexdigest(), **record}


def _sha256_of(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def is_up_to_date(output: Path, record: Mapping[str, object]) -> bool:
    """Tell whether a model folder was made by this recipe.

    Raises:
        ConfigError: The folder holds something that was not made by any recipe.
    """
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return False
    try:
        found = json.loads((output / RECIPE_FILE).read_text("utf-8"))["hash"]
    except (OSError, ValueError, LookupError, TypeError):
        raise ConfigError(
            f"{output} has no readable {RECIPE_FILE}, so it is no tiny model and is not replaced; "
            "name another folder, or remove it"
        ) from None
    return bool(found == record["hash"])
