"""Pools whose environments show pictures: a real host, chat template and image processor."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from memory_roles import SAMPLING, MemoryRoles, config, rewards

from mindrl.batch.prompts import Prompt
from mindrl.config.environment import EnvironmentConfig
from mindrl.config.generate import SamplingConfig
from mindrl.config.images import ImageConfig
from mindrl.config.megatron_training import MegatronTrainingConfig
from mindrl.config.reward_columns import RewardColumns
from mindrl.config.rl import RLConfig
from mindrl.data.order import PromptOrder
from mindrl.data.prompts import load_prompts
from mindrl.data.reading import Reading
from mindrl.data.row_images import RowImages
from mindrl.data.turn_template import TurnTemplate
from mindrl.environments.host import EnvironmentHost, Limits
from mindrl.environments.process import EnvironmentSpec
from mindrl.observability.timing import StageTimer
from mindrl.tiny.vision.model import build_vision_tokenizer
from mindrl.trainer.reward_manager import RewardManager
from mindrl.trainer.source.environment_turns import EnvironmentTurns
from mindrl.trainer.source.interface import Answering
from mindrl.trainer.source.pool import GroupPool, ResponseNumber

GALLERIES = Path(__file__).parents[1] / "unit/environments/galleries.py"
TOKENIZER = build_vision_tokenizer()
END = TOKENIZER.eos_token_id


def ids(text: str) -> list[int]:
    found: list[int] = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    return found


def rows_of(folder: Path, images: RowImages | None, row: dict[str, Any]) -> tuple[Prompt, ...]:
    """Read the prompt of a row as a run with environments does."""
    path = folder / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    training = MegatronTrainingConfig(
        train_iters=1, global_batch_size=1, seq_length=64, data_path=str(path), answer_column=None
    )
    reading = Reading(images=images, rewards=RewardColumns(names=None, takes_chat=True))
    rl = RLConfig(mini_batch_size=1, max_prompt_length=64)
    return load_prompts(str(path), training, rl, TOKENIZER, reading).prompts


@contextmanager
def gallery_pool(
    folder: Path, model: Path | None, row: dict[str, Any], opens: str = "", **keys: Any
) -> Iterator[GroupPool]:
    """Provide a pool of one prompt and two responses; `model` None reads no pictures."""
    most, longest = keys.pop("most", 4), keys.pop("longest", 150)
    answer_bytes = keys.pop("answer_bytes", 1 << 20)
    images = None
    if model is not None:
        kept = ImageConfig(folder=str(folder / "kept"), max_per_prompt=most)
        images = RowImages(model=str(model), config=kept, token=266)
    names = {"environment": f"{GALLERIES}:Gallery"} if "tools" not in keys else {}
    section = EnvironmentConfig(**names, **keys)
    spec = EnvironmentSpec(
        environment=section.environment,
        tools=section.tools,
        arguments={"opens": opens} if names else {},
    )
    limits = Limits(processes=8, start_seconds=60.0, call_seconds=60.0, answer_bytes=answer_bytes)
    host = EnvironmentHost(spec=spec, limits=limits)
    turns = EnvironmentTurns(
        owner="training",
        config=section,
        host=host,
        images=images,
        template=TurnTemplate.of(
            TOKENIZER, [END], image_token=None if images is None else images.token
        ),
        decode=lambda each: TOKENIZER.decode(each, skip_special_tokens=True),
        longest=longest,
        longest_prompt=64,
        warn=lambda _: None,
    )
    roles = MemoryRoles()
    answering = Answering(
        prompts=rows_of(folder, images, row),
        order=PromptOrder(count=1, seed=0, shuffle=False),
        workers=roles,  # type: ignore[arg-type]
        sampling=replace(SAMPLING, section=SamplingConfig(temperature=1.0, max_tokens=longest)),
        rewards=RewardManager(rewards(roles), TOKENIZER.decode, StageTimer()),
        per_step=1,
        turns=turns,
    )
    pool = GroupPool(config(), answering)
    try:
        pool.start(1, 1)
        listen(pool)
        yield pool
    finally:
        host.close()


def listen(pool: GroupPool) -> None:
    while pool.hear(10.0):
        pass


def write(pool: GroupPool, response: int, *turn: str | int) -> None:
    """Append a turn of texts and tokens, and wait for the answer to it."""
    row = ResponseNumber(next(iter(pool.groups)), response)
    parts = ([each] if isinstance(each, int) else ids(each) for each in turn)
    tokens = [*(token for part in parts for token in part), END]
    drawn = torch.tensor(tokens), torch.full((len(tokens),), -0.5)
    pool.extend(row, drawn, step=1, finished=True)
    listen(pool)
