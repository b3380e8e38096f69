"""Conversations through a spool: a rollout job holds them, and the train job trains on them."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from threading import Thread

import pytest
import torch
from memory_roles import lines, rewards, run_log
from test_conversations import FORGETS
from test_evaluated_conversations import END, GAMES, LONGEST, Scripted, prompt_of
from test_spool_trainers import LIMITS, SpoolRoles, groups_of, of_job

from mindrl.config.environment import EnvironmentConfig
from mindrl.config.generate import GenerateConfig, SamplingConfig
from mindrl.config.run import RunConfig
from mindrl.data.prompts import PromptSet
from mindrl.data.run_data import RunData
from mindrl.data.turn_template import TurnTemplate
from mindrl.environments.host import EnvironmentHost, Limits
from mindrl.environments.process import EnvironmentSpec
from mindrl.spool.duties import Duties
from mindrl.spool.folder import Spool, SpoolProgress
from mindrl.tiny.chat_model import build_tokenizer
from mindrl.trainer.policy_trainer import PolicyTrainer
from mindrl.trainer.spool_rollouts import SpoolRollouts

SCRIPTS = [("a$1", "right"), ("raise",), ("2", "3"), ("b$4", "right")]
"""Of the first prompt's two conversations and of the second's; one fails."""


class ScriptedJob(Scripted, SpoolRoles):
    """An engine with a script, and weights from folders."""

    def __init__(self) -> None:
        SpoolRoles.__init__(self)
        self.scripts, self.used = SCRIPTS, []


def with_environment(chosen: RunConfig, history: str) -> RunConfig:
    section = EnvironmentConfig(
        environment=f"{GAMES}:Guess",
        history=history,  # type: ignore[arg-type]
        max_turns=2,
        lock_step=True,
        max_failed_fraction=0.25,
    )
    sampling = SamplingConfig(temperature=1.0, max_tokens=LONGEST)
    generate = GenerateConfig(sampling_config=sampling)
    return replace(chosen, environment_config=section, generate_config=generate)


@pytest.fixture
def host() -> Iterator[EnvironmentHost]:
    limits = Limits(processes=8, start_seconds=60.0, call_seconds=60.0)
    found = EnvironmentHost(spec=EnvironmentSpec(environment=f"{GAMES}:Guess"), limits=limits)
    yield found
    found.close()


def trainer_of(
    root: Path, job: str | None, history: str, host: EnvironmentHost | None
) -> tuple[PolicyTrainer, ScriptedJob]:
    """Return the trainer of a job, or of one that does both halves if `job` is None."""
    chosen = of_job(job or "train", train_iters=2, max_prompt_length=64, max_staleness=0)
    if job is None:
        none = replace(chosen.spool_config, job=None, folder=None)
        chosen = replace(chosen, spool_config=none)
    chosen, tokenizer = with_environment(chosen, history), build_tokenizer()
    if history == "rendered":
        tokenizer.chat_template = FORGETS
    data = RunData(
        tokenizer=tokenizer,
        stop_token_ids=(END,),
        train=PromptSet(path="none", prompts=(*map(prompt_of, range(4)),), dropped=0),
        test=None,
        turns=TurnTemplate.of(tokenizer, [END], is_kept=history == "kept"),
    )
    roles = ScriptedJob()
    sources = replace(rewards(roles), environments=host, environment_weight=1.0)
    log = run_log(root, 2)
    return PolicyTrainer(chosen, data, roles, sources, log, max_logprob_gap=9.0), roles  # type: ignore[arg-type]


@pytest.mark.parametrize("history", ["kept", "rendered"])
def test_two_jobs_train_on_the_conversations_of_one(
    history: str, host: EnvironmentHost, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """To the bit: tokens, masks, log-probs, advantages of each minibatch, and metrics."""
    lone, expected = trainer_of(tmp_path / "lone", None, history, host)
    lone.run()
    spool = Spool(tmp_path / "spool", LIMITS)
    trainer, learning = trainer_of(tmp_path / "train", "train", history, None)
    trainer.source = groups_of(trainer, spool)
    drawing, _ = trainer_of(tmp_path / "rollout", "rollout", history, host)
    duties = Duties(spool=spool, leases=spool.leases("a rollout job"))
    told: list[str] = []
    loop = SpoolRollouts(duties=duties, trainer=drawing, notify=told.append, records=Counter[str]())
    other = Thread(target=loop.run, args=(lambda: None,))
    other.start()
    caplog.clear()
    trainer.run()
    spool.note(SpoolProgress(done=True))
    other.join()
    assert len(learning.minibatches) == len(expected.minibatches) == 4
    for ours, theirs in zip(learning.minibatches, expected.minibatches, strict=True):
        for column in fields(ours):
            pair = getattr(ours, column.name), getattr(theirs, column.name)
            same = torch.equal(*pair) if isinstance(pair[0], torch.Tensor) else pair[0] == pair[1]
            assert same, column.name
    both = [lines(tmp_path / name / "metrics.jsonl") for name in ("train", "lone")]
    started = ("turns/", "reward/", "rollout/", "advantage/")
    of_processes = ("turns/lost_processes", "turns/idle_seconds", "turns/environment_seconds")
    for ours, theirs in zip(*both, strict=True):
        names = [
            name
            for name in theirs
            if name.startswith(started) and not name.startswith(of_processes)
        ]
        assert {name: ours.get(name) for name in names} == {name: theirs[name] for name in names}
        assert ours["turns/ended_failed"] == 0.25
        assert len(names) > 12
    samples = [lines(tmp_path / name / "samples.jsonl") for name in ("train", "lone")]
    for row in (row for rows in samples for row in rows):
        for piece in row["conversation"]["pieces"]:
            piece.pop("seconds", None)
    assert samples[0] == samples[1]
    # Both name the reason.
    reason = "1 conversation(s) failed: ValueError: bad move"
    assert [line for line in told if "failed" in line] == [f"step {n}: {reason}" for n in (1, 2)]
    assert sum(reason in record.message for record in caplog.records) == 2
    drawn = lines(tmp_path / "rollout/metrics.jsonl")
    assert [row["turns/ended_failed"] for row in drawn] == [0.25, 0.25]
