"""Pools of conversations with real environments and a real chat template."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from memory_roles import SAMPLING, MemoryRoles, config, rewards

from mindrl.batch.prompts import Prompt, PromptRow
from mindrl.config.environment import EnvironmentConfig
from mindrl.config.generate import SamplingConfig
from mindrl.data.order import PromptOrder
from mindrl.data.turn_template import TurnTemplate
from mindrl.environments.host import EnvironmentHost, Limits
from mindrl.environments.process import EnvironmentSpec
from mindrl.observability.timing import StageTimer
from mindrl.tiny.chat_model import build_tokenizer
from mindrl.trainer.reward_manager import RewardManager
from mindrl.trainer.source.environment_turns import EnvironmentTurns
from mindrl.trainer.source.interface import Answering
from mindrl.trainer.source.pool import GroupPool, ResponseNumber

GAMES = Path(__file__).parents[1] / "environments/games.py"
TOKENIZER = build_tokenizer()
END = TOKENIZER.eos_token_id
LONGEST = 90
FOREVER = 3600.0
"""Longer than the time limit of a test: a wait for an answer that never comes fails the test."""
MakePool = Callable[..., GroupPool]


def ids(text: str) -> list[int]:
    found: list[int] = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    return found


@pytest.fixture
def make_pool(tmp_path: Path) -> Iterator[MakePool]:
    """Make pools of one prompt and two responses; each pool has its own host."""
    hosts: list[EnvironmentHost] = []
    messages = ({"role": "user", "content": "play"},)
    text = TOKENIZER.apply_chat_template([*messages], add_generation_prompt=True, tokenize=False)
    row = PromptRow(columns={"low": 5}, messages=messages, is_chat=True)
    prompt = Prompt(uid=0, token_ids=tuple(ids(text)), text=text, answer="", row=row)

    def make(template: str | None = None, processes: int = 8, **keys: object) -> GroupPool:
        tokenizer = build_tokenizer()
        tokenizer.chat_template = template or tokenizer.chat_template
        chosen: dict[str, Any] = {"environment": f"{GAMES}:Guess", **keys}
        section = EnvironmentConfig(**chosen)
        spec = EnvironmentSpec(
            environment=section.environment, arguments={"marker": str(tmp_path / "marker")}
        )
        limits = Limits(processes=processes, start_seconds=60.0, call_seconds=60.0)
        hosts.append(EnvironmentHost(spec=spec, limits=limits))
        turns = EnvironmentTurns(
            owner="training",
            config=section,
            host=hosts[-1],
            template=TurnTemplate.of(tokenizer, [END], is_kept=section.history == "kept"),
            decode=lambda each: TOKENIZER.decode(each, skip_special_tokens=True),
            longest=LONGEST,
            longest_prompt=64,
            warn=lambda _: None,
        )
        roles = MemoryRoles()
        answering = Answering(
            prompts=[prompt],
            order=PromptOrder(count=1, seed=0, shuffle=False),
            workers=roles,  # type: ignore[arg-type]
            sampling=replace(SAMPLING, section=SamplingConfig(temperature=1.0, max_tokens=LONGEST)),
            rewards=RewardManager(rewards(roles), TOKENIZER.decode, StageTimer()),
            per_step=1,
            turns=turns,
        )
        return GroupPool(config(), answering)

    yield make
    for host in hosts:
        host.close()


def listen(pool: GroupPool) -> None:
    while pool.hear(FOREVER):
        pass


def write(pool: GroupPool, response: int, text: str, *, ends: bool = True, step: int = 1) -> None:
    """Append a turn of the policy, and wait for the answer to it."""
    row = ResponseNumber(next(iter(pool.groups)), response)
    tokens = [*ids(text), *([END] if ends else [])]
    drawn = torch.tensor(tokens), torch.full((len(tokens),), -0.5)
    pool.extend(row, drawn, step=step, finished=ends)
    listen(pool)


def begun(pool: GroupPool) -> GroupPool:
    pool.start(1, 1)
    listen(pool)
    return pool


def number_of(pool: GroupPool, response: int) -> str:
    """Return the number that the environment of a response has named."""
    sequence = next(iter(pool.groups.values())).sequences[response]
    return TOKENIZER.decode(sequence.tokens_N).split("no")[-1].split("pe")[-1].split("<")[0].strip()
