"""Dynamic sampling with two jobs: the train job requests responses, a rollout job answers."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from memory_replicas import MemoryEngines
from memory_roles import data, rewards, run_log
from test_replicas_ahead import PROMPTS
from test_source_filter import ONE_STEP_OFF, THIRD, TWO_OF_FIVE, Judging, build
from test_source_filter import train as train_alone
from test_spool_trainers import LIMITS, SpoolRoles, groups_of, nothing, of_job

from mindrl.batch.rollouts import Rollouts
from mindrl.config.run import RunConfig
from mindrl.config.spool_rules import spool_findings
from mindrl.rewards.functions import ScoreRange
from mindrl.rewards.scores import Failure, Failures, Scores
from mindrl.spool.duties import Duties
from mindrl.spool.folder import Spool, SpoolProgress
from mindrl.trainer.policy_trainer import PolicyTrainer
from mindrl.trainer.source.generated import GeneratedGroups
from mindrl.trainer.spool_rollouts import SpoolRollouts

STEPS = 8


class JudgingRoles(SpoolRoles):
    """The two responses to some prompts get different scores; one in each call fails."""

    def __init__(self, differing: Sequence[int]) -> None:
        super().__init__()
        self.differing = {*differing}

    def score(self, responses: Sequence[str], answers: Sequence[str], *_: object) -> Scores:
        uids = [int(each) for each in answers]
        assert len(responses) == len(uids)
        scores = tuple(float(row % 2 and uid in self.differing) for row, uid in enumerate(uids))
        failed = Failures(
            function="exact", count=1, first=Failure(kind="timeout", detail="late"), response=0
        )
        return Scores(
            rewards=scores,
            components={"exact": scores},
            ranges={"exact": ScoreRange(0.0, 1.0)},
            failures=(failed,),
        )


class Jobs:
    """A train job that can be replaced, and a rollout job in a thread."""

    def __init__(self, root: Path, differing: Sequence[int], **keys: Any) -> None:
        self.root, self.differing = root, differing
        self.keys = {
            "filter_groups_enable": True,
            "train_iters": STEPS,
            "no_shuffle": True,
            "save_interval": 1,
            **keys,
        }
        self.spool = Spool(root / "spool", LIMITS)
        self.written = Counter[str]()
        self.saved = 0
        self.source = self.train_job()

    def trainer(self, job: str) -> PolicyTrainer:
        chosen: RunConfig = of_job(job, **self.keys)
        assert not [*spool_findings(chosen)]
        roles, log = JudgingRoles(self.differing), run_log(self.root / job, STEPS)
        of_run = data(train=PROMPTS)
        return PolicyTrainer(chosen, of_run, roles, rewards(roles), log, max_logprob_gap=None)

    def train_job(self) -> GeneratedGroups:
        return groups_of(self.trainer("train"), self.spool, lambda: self.saved)

    @contextmanager
    def rollout_job(self) -> Iterator[None]:
        """Answer requests in a thread until the context ends."""
        duties = Duties(spool=self.spool, leases=self.spool.leases("a rollout job"))
        loop = SpoolRollouts(
            duties=duties,
            trainer=self.trainer("rollout"),
            notify=lambda _: None,
            records=self.written,
        )
        thread = Thread(target=loop.run, args=(nothing,))
        thread.start()
        try:
            yield
        finally:
            self.spool.send("drain")
            thread.join()
            self.spool.start()

    def train(
        self, steps: Sequence[int], check_interrupt: Callable[[], object] = nothing
    ) -> "Trained":
        """Run steps, each with a checkpoint."""
        found = Trained()
        for step in steps:
            gathered = self.source.next(step, check_interrupt)
            with gathered.rating as rewarded:
                found.failures += sum(each.count for each in rewarded().scores.failures)
                found.rated += rewarded().scores.rated
                pairs = zip(*[iter(rewarded().scores.rewards)] * 2, strict=True)
                assert all(one != other for one, other in pairs)
            found.uids.append([prompt.uid for prompt in gathered.prompts])
            found.rollouts.append(gathered.rollouts)
            found.metrics.append({**gathered.metrics, **self.source.trained(step)})
            self.saved = step
        return found


class Trained:
    """What the steps of a run were given."""

    def __init__(self) -> None:
        self.uids: list[list[int]] = []
        self.rollouts: list[Rollouts] = []
        self.metrics: list[dict[str, float]] = []
        self.failures = self.rated = 0

    def ages(self) -> list[list[int]]:
        """Return the age of the first token of each response, by steps."""
        return [ages_of(each) for each in self.rollouts]


def ages_of(rollouts: Rollouts) -> list[int]:
    """Return the age of the first token of each response."""
    if rollouts.ages_BT is None:
        return [0] * len(rollouts)
    first_B = rollouts.response_mask_BT.int().argmax(dim=1)
    found: list[int] = rollouts.ages_BT.gather(1, first_B[:, None])[:, 0].tolist()
    return found


@pytest.mark.parametrize(
    ("staleness", "every", "part"), [(0, 1, None), (1, 1, 1), (1, 2, None), (2, 1, 2), (3, 2, 1)]
)
def test_each_step_is_full_of_groups_with_a_signal_within_the_bound(
    staleness: int, every: int, part: int | None, tmp_path: Path
) -> None:
    keys = {"max_staleness": staleness, "publish_every": every, "prompts_per_record": part}
    jobs = Jobs(tmp_path, TWO_OF_FIVE, **keys)
    with jobs.rollout_job():
        found = jobs.train(range(1, STEPS + 1))
    # In the order of the data, each once.
    assert found.uids == [TWO_OF_FIVE[each : each + 2] for each in range(0, 2 * STEPS, 2)]
    ages = [max(each) for each in found.ages()]
    assert min(1, staleness) <= max(ages) <= staleness
    assert [step["staleness/max"] for step in found.metrics] == ages
    drawn = sum(step["groups/drawn"] for step in found.metrics)
    again = sum(step["groups/answered_again"] for step in found.metrics)
    assert drawn - again == jobs.source.pool.first_open
    assert found.rated == 2 * drawn, "all responses are counted, those without a signal too"
    assert found.failures == jobs.written["written"] - len(jobs.source.generation.requests)


def test_without_staleness_the_jobs_do_what_one_run_in_turns_does(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, TWO_OF_FIVE, max_staleness=0, prompts_per_record=1)
    with jobs.rollout_job():
        found = jobs.train(range(1, STEPS + 1))
    alone = build(Judging(TWO_OF_FIVE))
    whole = train_alone(alone, range(1, STEPS + 1))
    assert found.uids == whole.uids
    assert jobs.source.pool.next_prompt == alone.pool.next_prompt
    for ours, theirs in zip(found.metrics, whole.metrics, strict=True):
        assert {key: ours[key] for key in ours if "groups/" in key} == {
            key: theirs[key] for key in theirs if "groups/" in key
        }


def test_with_a_staleness_of_one_the_jobs_train_on_the_groups_of_one_step_off(
    tmp_path: Path,
) -> None:
    jobs = Jobs(tmp_path, TWO_OF_FIVE, max_staleness=1)
    with jobs.rollout_job():
        found = jobs.train(range(1, STEPS + 1))
    engines = MemoryEngines(2, lambda _: 2)
    whole = train_alone(build(Judging(TWO_OF_FIVE), engines, **ONE_STEP_OFF), range(1, STEPS + 1))
    assert found.uids == whole.uids
    assert found.ages() == [ages_of(each) for each in whole.rollouts]


@pytest.mark.nightly
@pytest.mark.parametrize("staleness", [0, 2])
def test_a_train_job_that_is_killed_at_any_step_trains_on_the_same_responses(
    staleness: int, tmp_path: Path
) -> None:
    keys = {"max_staleness": staleness, "prompts_per_record": 2}
    whole, jobs = (Jobs(tmp_path / name, THIRD, **keys) for name in ("whole", "killed"))
    with whole.rollout_job():
        undisturbed = whole.train(range(1, STEPS + 1))
    found = Trained()
    with jobs.rollout_job():
        for step in range(1, STEPS + 1):
            state = json.loads(json.dumps(jobs.source.state(step - 1)))
            # The next step is begun, and lost with its process.
            jobs.source.next(step, nothing)
            jobs.source = jobs.train_job()
            jobs.source.load_state(step - 1, state)
            trained = jobs.train([step])
            found.uids += trained.uids
            found.rollouts += trained.rollouts
    assert found.uids == undisturbed.uids
    for ours, theirs in zip(found.rollouts, undisturbed.rollouts, strict=True):
        assert torch.equal(ours.tokens_BT, theirs.tokens_BT)
        assert torch.equal(ours.rollout_logprobs_BT, theirs.rollout_logprobs_BT)
    assert found.ages() == undisturbed.ages()
    # No response was generated twice, unless its prompt was given to the next step.
    if staleness:
        assert jobs.written == whole.written


@pytest.mark.parametrize("done", [False, True])
def test_a_train_job_that_continues_before_a_confirmed_step_trains_on_the_same_responses(
    done: bool, tmp_path: Path
) -> None:
    """Its newest checkpoints are damaged, and without staleness all responses can come again."""
    keys = {"max_staleness": 0, "prompts_per_record": 1}
    jobs = Jobs(tmp_path, TWO_OF_FIVE, **keys)
    with jobs.rollout_job():
        jobs.train([1, 2])
        state = json.loads(json.dumps(jobs.source.state(2)))
        first = jobs.train(range(3, 7))
    assert jobs.spool.progress().confirmed == 5
    if done:
        jobs.spool.note(SpoolProgress(gathering=6, confirmed=6, done=True))
        jobs.spool.clear()
    jobs.saved, looks = 2, iter(range(500))
    jobs.source = jobs.train_job()
    jobs.source.load_state(2, state)
    jobs.source.generation.begin(3, nothing)
    assert (jobs.spool.progress().confirmed, jobs.spool.progress().done) == (2, False)
    with jobs.rollout_job():
        again = jobs.train(range(3, 7), check_interrupt=lambda: next(looks))
    assert again.uids == first.uids
    for ours, theirs in zip(again.rollouts, first.rollouts, strict=True):
        assert torch.equal(ours.tokens_BT, theirs.tokens_BT)


def test_accuracies_of_a_record_reach_the_train_job(tmp_path: Path) -> None:
    """A filter on the accuracy needs those that functions return besides their scores."""

    class Accurate(JudgingRoles):
        def score(self, responses: Sequence[str], answers: Sequence[str], *_: object) -> Scores:
            found = super().score(responses, answers)
            right, constant = found.rewards, (0.5,) * len(found.rewards)
            return replace(
                found,
                rewards=constant,
                components={"exact": constant},
                accuracies={"exact": right},
                failures=(),
            )

    class Graded(Jobs):
        def trainer(self, job: str) -> PolicyTrainer:
            made = super().trainer(job)
            sources = replace(made.rewards.sources, scorer=Accurate(self.differing))
            made.rewards = replace(made.rewards, sources=sources)
            made.answering = replace(made.answering, rewards=made.rewards)
            return made

    jobs = Graded(tmp_path, THIRD, filter_groups_metric="accuracy", max_staleness=1)
    with jobs.rollout_job():
        first = jobs.source.next(1, nothing)
    assert [prompt.uid for prompt in first.prompts] == [0, 3]
