"""Evaluations through real environments and a real chat template; the policy is a script."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from memory_roles import SAMPLING, MemoryRoles, config, lines, rewards, run_log

from mindrl.batch.prompts import Prompt, PromptRow
from mindrl.batch.rollouts import Responses
from mindrl.config.data import DataConfig, EvalSet
from mindrl.config.environment import EnvironmentConfig
from mindrl.config.generate import GenerateConfig, SamplingConfig
from mindrl.data.order import PromptOrder
from mindrl.data.prompts import PromptSet
from mindrl.data.run_data import RunData
from mindrl.data.turn_template import TurnTemplate
from mindrl.environments.host import EnvironmentHost, Limits
from mindrl.environments.process import EnvironmentSpec
from mindrl.observability.timing import StageTimer
from mindrl.rewards.functions import ScoreRange
from mindrl.rewards.scores import Scores
from mindrl.rollout.engine import Request, Sampling
from mindrl.tiny.chat_model import build_tokenizer
from mindrl.trainer.engine_rounds import Completed, NextTurns, RoundEnds
from mindrl.trainer.evaluation import Evaluation
from mindrl.trainer.policy_trainer import PolicyTrainer
from mindrl.trainer.reward_manager import RewardManager
from mindrl.trainer.source.environment_turns import EnvironmentTurns
from mindrl.trainer.source.interface import Answering

GAMES = Path(__file__).parents[1] / "environments/games.py"
TOKENIZER = build_tokenizer()
END = TOKENIZER.eos_token_id
LONGEST = 90
OF_SET = 40
"""Longest conversation of the set, less than that of the run."""


def ids(text: str) -> list[int]:
    found: list[int] = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    return found


def plain(token_ids: list[int]) -> str:
    return str(TOKENIZER.decode(token_ids, skip_special_tokens=True))


class Scripted(MemoryRoles):
    """An engine that writes the turns of a script, conversation by conversation."""

    def __init__(self, scripts: Sequence[Sequence[str]]) -> None:
        super().__init__()
        self.scripts = scripts
        self.used: list[Sampling] = []

    def generate_until(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        is_enough: Callable[[Collection[int]], bool],
        *,
        rounds: RoundEnds,
        next_turns: NextTurns,
    ) -> Responses:
        del rounds
        self.used.append(sampling)
        turns = [iter(script) for script in self.scripts]
        open_, written = [*zip(turns, requests, strict=False)], list[Completed]()
        of_places = list[Iterator[str]]()
        while True:
            new = {}
            for turn, request in open_:
                limit = sampling.section.max_tokens - request.drawn
                tokens = [*ids(next(turn)), END]
                drawn = torch.tensor(tokens[:limit])
                new[len(written)] = Completed(
                    drawn, torch.full((len(drawn),), -0.5), len(tokens) <= limit
                )
                written.append(new[len(written)])
                of_places.append(turn)
            after = next_turns(new, 0)
            if is_enough(range(len(written))):
                return Responses.of(
                    [each.tokens_N.tolist() for each in written],
                    [each.logprobs_N.tolist() for each in written],
                    [each.finished for each in written],
                )
            open_ = [(of_places[each.place], each.request) for each in after]

    score_parts = MemoryRoles.score_parts

    def score(self, responses: Sequence[str], *_: object) -> Scores:
        """Return 1 for a response with the word `right`."""
        right = tuple(float("right" in response) for response in responses)
        return Scores(
            rewards=right,
            components={"exact": right},
            ranges={"exact": ScoreRange(0.0, 1.0)},
            failures=(),
        )


def prompt_of(uid: int, low: object = 5) -> Prompt:
    messages = ({"role": "user", "content": f"play {uid}"},)
    text = TOKENIZER.apply_chat_template([*messages], add_generation_prompt=True, tokenize=False)
    row = PromptRow(columns={"low": low}, messages=messages, is_chat=True)
    return Prompt(uid=uid, token_ids=tuple(ids(text)), text=text, answer="", row=row)


Measure = Callable[..., tuple[dict[str, Any], list[dict[str, Any]]]]


@pytest.fixture
def measure(tmp_path: Path) -> Iterator[Measure]:
    """Evaluate scripts of a set with two answers to each prompt; return metrics and samples."""
    hosts: list[EnvironmentHost] = []

    def of(
        scripts: Sequence[Sequence[str]], prompts: Sequence[Prompt]
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        section = EnvironmentConfig(environment=f"{GAMES}:Guess", max_turns=2, lock_step=True)
        limits = Limits(processes=8, start_seconds=60.0, call_seconds=60.0)
        hosts.append(
            EnvironmentHost(spec=EnvironmentSpec(environment=section.environment), limits=limits)
        )
        template = TurnTemplate.of(TOKENIZER, [END])
        log = run_log(tmp_path, 1)
        turns = EnvironmentTurns(
            owner="evaluation",
            config=section,
            host=hosts[-1],
            template=template,
            decode=plain,
            longest=LONGEST,
            longest_prompt=64,
            warn=log.warn,
        )
        roles = Scripted(scripts)
        answering = Answering(
            prompts=prompts,
            order=PromptOrder(count=len(prompts), seed=0, shuffle=False),
            workers=roles,  # type: ignore[arg-type]
            sampling=replace(SAMPLING, section=SamplingConfig(temperature=1.0, max_tokens=LONGEST)),
            rewards=RewardManager(rewards(roles), plain, StageTimer()),
            per_step=len(prompts),
            turns=turns,
        )
        games = EvalSet(
            name="games", data_path="none", samples=2, temperature=0.6, max_tokens=OF_SET
        )
        found = PromptSet(path="none", prompts=(*prompts,), dropped=0)
        chosen = replace(config(), data_config=DataConfig(eval_sets=(games,)))
        data = RunData(
            tokenizer=TOKENIZER,
            stop_token_ids=(END,),
            train=found,
            test=None,
            eval_sets={"games": found},
            turns=template,
        )
        Evaluation(chosen, data, answering, log).measure(3, lambda *_: None)
        (sampling,) = roles.used
        assert (sampling.section.temperature, sampling.is_greedy) == (0.6, False)
        (metrics,) = lines(tmp_path / "metrics.jsonl")
        return metrics, lines(tmp_path / "evaluations/games.jsonl")

    yield of
    for host in hosts:
        host.close()


def test_several_conversations_about_each_prompt_give_pass_at_k(measure: Measure) -> None:
    scripts = [("1", "right"), ("1", "2"), ("3", "4"), ("5", "6")]
    metrics, samples = measure(scripts, [prompt_of(0), prompt_of(1)])
    assert (metrics["eval/games/avg@2"], metrics["eval/games/pass@2"]) == (0.25, 0.5)
    assert [sample["reward"] for sample in samples] == [1.0, 0.0, 0.0, 0.0]
    assert {sample["conversation"]["ending"] for sample in samples} == {"turns"}
    # Each has an environment of its own, seeded by step, prompt and number.
    given = [sample["conversation"]["pieces"][2]["text"] for sample in samples]
    assert len({*given}) > 1


def test_a_set_has_the_limit_of_its_own_and_failed_conversations_are_wrong(
    measure: Measure, caplog: pytest.LogCaptureFixture
) -> None:
    scripts = [("1" * 60,), ("right", "raise")]
    metrics, samples = measure(scripts, [prompt_of(0), prompt_of(1, low="9" * 100)])
    long, failed, *never = (sample["conversation"] for sample in samples)
    assert (long["ending"], long["pieces"][1]["tokens"]) == ("tokens", OF_SET)
    assert [each["ending"] for each in (failed, *never)] == ["failed"] * 3
    # The words of the failed one satisfy the judge.
    assert [sample["reward"] for sample in samples] == [0.0, 1.0, 0.0, 0.0]
    assert (metrics["eval/games/avg@2"], metrics["eval/games/pass@2"]) == (0.0, 0.0)
    assert [len(each["pieces"]) for each in never] == [0, 0]
    warned = [each.getMessage() for each in caplog.records]
    assert any("1 conversation(s) failed: ValueError: bad move" in line for line in warned)
    assert any("2 conversation(s) failed: it begins with" in line for line in warned)


def test_the_record_of_a_conversation_has_each_turn_with_its_author(measure: Measure) -> None:
    _, samples = measure([("1", "right"), ("1", "2")], [prompt_of(0)])
    pieces = samples[0]["conversation"]["pieces"]
    opening, first, given, last = pieces
    assert opening["text"] == "guess 5 to 99"
    assert [piece["by"] for piece in pieces] == ["user", "policy", "user", "policy"]
    assert [piece["masked"] for piece in pieces] == [True, False, True, False]
    assert (first["text"], last["text"]) == ("1", "right")
    assert given["text"].removeprefix("nope ").removeprefix("no ").isdigit()
    assert (first["reward"], last["reward"], first["calls"]) == (0.25, 0.5, 0)
    assert 0 < first["seconds"] < 60
    assert samples[0]["response_tokens"] == first["tokens"] + last["tokens"]
    # The end of the turn before, and the header of the next one.
    around = len(ids("<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n")) + len(ids("\n"))
    assert given["tokens"] == len(ids(given["text"])) + around
    assert [*given] == ["by", "text", "tokens", "masked"]
    assert [*samples[0]][-2:] == ["conversation", "data_source"]


def test_a_training_step_records_conversations_and_the_time_of_environments(
    tmp_path: Path,
) -> None:
    section = EnvironmentConfig(
        environment=f"{GAMES}:Guess", max_turns=2, lock_step=True, max_failed_fraction=0.25
    )
    sampling = SamplingConfig(temperature=1.0, max_tokens=LONGEST)
    chosen = replace(
        config(max_prompt_length=64),
        environment_config=section,
        generate_config=GenerateConfig(sampling_config=sampling),
    )
    limits = Limits(processes=8, start_seconds=60.0, call_seconds=60.0)
    host = EnvironmentHost(spec=EnvironmentSpec(environment=section.environment), limits=limits)
    prompts = (prompt_of(0), prompt_of(1))
    data = RunData(
        tokenizer=TOKENIZER,
        stop_token_ids=(END,),
        train=PromptSet(path="none", prompts=prompts, dropped=0),
        test=None,
        turns=TurnTemplate.of(TOKENIZER, [END]),
    )
    roles = Scripted([("1", "right"), ("2", "3"), ("raise",), ("4", "right")])
    sources = replace(rewards(roles), environments=host, environment_weight=1.0)
    log = run_log(tmp_path, 1)
    try:
        PolicyTrainer(chosen, data, roles, sources, log, max_logprob_gap=9.0).run()  # type: ignore[arg-type]
    finally:
        host.close()
    # The failed one is not trained on, and the rows after it are those of other conversations.
    samples = lines(tmp_path / "samples.jsonl")
    texts = {sample["response"]: sample["conversation"]["pieces"][1]["text"] for sample in samples}
    assert texts == {"1right": "1", "23": "2", "4right": "4"}
    (metrics,) = lines(tmp_path / "metrics.jsonl")
    assert {sample["conversation"]["ending"] for sample in samples} == {"turns"}
    assert 0 < metrics["turns/environment_seconds_mean"] <= metrics["turns/environment_seconds_max"]
