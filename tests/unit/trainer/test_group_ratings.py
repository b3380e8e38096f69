"""Groups that are scored while engines still generate others."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from memory_replicas import MemoryEngines
from memory_roles import MemoryRoles, config, data, lines, rewards, run_log
from test_partial_pool import LongTail, build
from test_replicas_ahead import groups_of

from mindrl.batch.rollouts import Rollouts
from mindrl.errors import RewardError
from mindrl.rewards.scores import Scores
from mindrl.trainer.policy_trainer import PolicyTrainer
from mindrl.trainer.source.replicas import Replicas
from mindrl.trainer.worker_handle import Watched

PATIENCE = 20.0
"""Seconds after which something that should have come counts as lost."""


class Waiting(MemoryRoles):
    """Completes its last response only when the first group has scores."""

    def __init__(self) -> None:
        super().__init__()
        self.scored = threading.Event()
        self.in_time = False
        self.texts: list[str] = []

    def score(self, responses: Sequence[str], answers: Sequence[str], *more: object) -> Scores:
        self.texts += responses
        found = super().score(responses, answers, *more)
        self.scored.set()
        return found

    def generate_sequences(self, *arguments: Any, **more: Any) -> Rollouts:
        watched: Watched = more["watched"]

        def on_completed(new: Any) -> None:
            if 3 in new:
                self.in_time = self.scored.wait(PATIENCE)
            watched.on_completed(new)

        more["watched"] = Watched(watched.round_steps, on_completed)
        return super().generate_sequences(*arguments, **more)


def trained(root: Path, roles: MemoryRoles, **keys: Any) -> dict[str, float]:
    """Train one step of two groups of two responses; return its metrics."""
    log = run_log(root, 1)
    PolicyTrainer(config(**keys), data(), roles, rewards(roles), log, max_logprob_gap=0.1).run()
    (step,) = lines(root / "metrics.jsonl")
    return {name: value for name, value in step.items() if not name.startswith(("sec", "through"))}


def test_a_group_has_scores_before_the_rollout_has_ended_and_each_response_has_one(
    tmp_path: Path,
) -> None:
    roles = Waiting()
    found = trained(tmp_path / "during", roles, blocking=False)
    assert roles.in_time
    assert sorted(roles.texts) == ["20 30", "20 30", "20 31", "20 31"]
    assert found == trained(tmp_path / "after", MemoryRoles(), blocking=True)


def test_partial_rollout_scores_each_response_once_in_the_step_that_trains_on_it(
    tmp_path: Path,
) -> None:
    steps = {"train_iters": 4}
    during, after = LongTail(), LongTail()
    build(tmp_path / "during", during, blocking=False, **steps).run()
    build(tmp_path / "after", after, blocking=True, **steps).run()
    assert during.trained() == after.trained()
    for one, other in zip(during.minibatches, after.minibatches, strict=True):
        assert one.advantages_BT.tolist() == other.advantages_BT.tolist()


@pytest.mark.parametrize("order", ["in_turns", "one_step_off", "asynchronous"])
def test_replicas_of_their_own_have_their_groups_scored(order: str) -> None:
    """Each is driven by itself, also in turns: others take over the requests of a lost one."""
    roles = MemoryRoles()
    engines = MemoryEngines(2, lambda uid: 2 + uid % 3)
    keys = {"step_order": order, "blocking": False, "use_integrated_worker": False}
    source = groups_of(roles, engines, train_iters=4, **keys)
    assert isinstance(source.generation, Replicas)
    for step in (1, 2, 3):
        gathered = source.next(step, lambda: None)
        with gathered.rating as rewarded:
            scores = rewarded()
        texts = [" ".join(map(str, row)) for row in gathered.rollouts.response_tokens()]
        assert scores.responses == texts
        source.trained(step)
    ratings = source.generation.ratings
    assert ratings is not None
    # What was trained on is forgotten.
    assert len(ratings._known) <= len(source.pool.groups)


@pytest.mark.parametrize("keys", [{}, {"partial_rollout": True}])
def test_an_error_of_the_functions_ends_the_run(keys: dict[str, Any], tmp_path: Path) -> None:
    class Broken(LongTail):
        def score(self, *_: object) -> Scores:
            raise RewardError("lost")

    roles = Broken()
    with pytest.raises(RewardError, match="lost"):
        trained(tmp_path, roles, blocking=False, **keys)
    assert "update" not in roles.calls
