"""One number that is not finite on one of two ranks, wherever it can come from."""

import io
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from fault_messages import Kept, Place, Plant
from forked_workers import ForkedGroup, ForkedWorkers
from nightly import at_night_but
from role_steps import PROMPTS, SAMPLING

from mindrl.checkpoint.commits import Commits
from mindrl.config.run import RunConfig
from mindrl.data.prompts import PromptSet
from mindrl.data.run_data import RunData
from mindrl.errors import NonfiniteError
from mindrl.launch.parts import worker_handle
from mindrl.observability.console import StepConsole
from mindrl.observability.trackers import JsonlTracker
from mindrl.platform.device import PLATFORMS
from mindrl.preflight.checks import check
from mindrl.rewards.scorer import RewardScorer
from mindrl.trainer.policy_trainer import PolicyTrainer
from mindrl.trainer.reward_manager import RewardSources
from mindrl.trainer.run_log import RunFolder, RunLog, RunSummary

pytestmark = pytest.mark.distributed

KEYS: dict[str, Any] = {
    "megatron_training.train_iters": 1,
    "rl_config.actor_resource.num_npus": 2,
    "rl_config.adv_estimator": "gae",
    "rl_config.init_kl_coef": 0.1,
    # A pass of its own, in which a number may be bad.
    "rl_config.old_log_probs": "recompute",
    "rl_config.n_samples_per_prompt": 2,
    "rl_config.verifier_function": ["strict_rule:score"],
    "rl_config.verifier_weight": [1.0],
    "rl_config.memory_timeline_steps": 0,
    "actor_config.tensor_model_parallel_size": 1,
    "critic_config.lr": 1e-3,
    "generate_config.infer_tensor_parallel_size": 1,
    "generate_config.kv_cache_mib": 6,
    "generate_config.sampling_config.max_tokens": SAMPLING.section.max_tokens,
}


class Numerals:
    """Spells token ids as numbers."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return " ".join(map(str, token_ids))


@dataclass
class Stage:
    """Two workers with all roles, which outlive the runs that are made with them."""

    group: ForkedGroup
    trainer: Callable[..., PolicyTrainer]

    def kept(self) -> dict[str, list[Kept]]:
        """Read all that the models keep that learn, by rank."""
        return {role: self.group.call_all("kept", role) for role in sorted(BOTH)}


@pytest.fixture(scope="module")
def stage(
    forked_workers: ForkedWorkers,
    models: dict[str, str],
    run_config: Callable[..., RunConfig],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stage]:
    rows = tmp_path_factory.mktemp("data") / "prompts.jsonl"
    rows.write_text("{}\n", "utf-8")
    folders = {
        "megatron_training.data_path": str(rows),
        "critic_config.load": models["critic"],
        "reward_config.load": models["reward"],
    }
    config = run_config(Path(models["actor"]), KEYS | folders)
    plan = check(config, PLATFORMS["cpu"])
    group = forked_workers.start(plan, "fault_probe:PlantedWorker")
    with RewardScorer(config.rl_config) as scorer:

        def trainer(root: Path, answer: str = "", **training: Any) -> PolicyTrainer:
            """Make a run of one step; `answer` is the right one to its first prompt."""
            changed = replace(config.megatron_training, **training)
            chosen = replace(config, megatron_training=changed)
            prompts = (replace(PROMPTS[0], answer=answer), *PROMPTS[1:])
            train = PromptSet(path="none", prompts=prompts, dropped=0)
            data = RunData(
                tokenizer=Numerals(),
                stop_token_ids=SAMPLING.stop_token_ids,
                train=train,
                test=None,
            )
            folder = RunFolder(root=root)
            log = RunLog(
                folder,
                RunSummary(exports={"actor": root / "model"}),
                StepConsole(1, io.StringIO()),
                [JsonlTracker(folder.metrics)],
            )
            rewards = RewardSources(scorer=scorer, reward_model=workers, reward_model_weight=1.0)
            return PolicyTrainer(chosen, data, workers, rewards, log, max_logprob_gap=0.01)

        workers = worker_handle(group, plan)
        yield Stage(group, trainer)
    group.stop()


def only_step(root: Path) -> dict[str, Any]:
    (line,) = (root / "metrics.jsonl").read_text("utf-8").splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


NOTHING: frozenset[str] = frozenset()
ACTOR, CRITIC, BOTH = frozenset({"actor"}), frozenset({"critic"}), frozenset({"actor", "critic"})
REACHES: dict[Place, frozenset[str]] = {
    "actor_loss": ACTOR,
    "actor_gradient": ACTOR,
    "critic_loss": CRITIC,
    "critic_gradient": CRITIC,
    "actor_logprobs": ACTOR,
    "ref_logprobs": ACTOR,
    # Of the values and the rewards returns are made, and advantages, whitened over the step.
    "critic_values": BOTH,
    "reward_scores": BOTH,
    # These are compared with the trainer's, and used for nothing else.
    "rollout_logprobs": NOTHING,
    "padding": NOTHING,
}
"""Of each place, the models whose only update of the step it reaches."""
VALUES = ("nan", "inf", "-inf")
CASES = [(place, value, rank) for place in REACHES for value in VALUES for rank in range(2)]
EVERY_CHANGE = (
    ("actor_gradient", "inf", 1),
    ("critic_loss", "-inf", 0),
    ("reward_scores", "inf", 1),
    ("rollout_logprobs", "-inf", 0),
)


@pytest.mark.parametrize(("place", "value", "rank"), at_night_but(EVERY_CHANGE, CASES))
def test_a_bad_number_of_one_rank_costs_the_updates_that_it_reaches_and_leaves_no_trace(
    place: Place,
    value: str,
    rank: int,
    stage: Stage,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = stage.kept()
    trainer = stage.trainer(tmp_path)
    stage.group.call_all("plant", [Plant(place=place, value=float(value), rank=rank)])
    trainer.run()
    assert stage.group.call_all("witnessed") == [1 - rank, rank]

    step = only_step(tmp_path)
    after, reached = stage.kept(), REACHES[place]
    for role, name in (("actor", "update/skipped"), ("critic", "critic/skipped")):
        assert step[name] == (role in reached)
        for ours, theirs in zip(after[role], before[role], strict=True):
            assert ours.updates == theirs.updates + (role not in reached)
            changed = ours.checksums.items() - theirs.checksums.items()
            assert bool(changed) == (role not in reached)
    assert None not in step.values()
    assert ("reward/mean" in step) == (place != "reward_scores")
    counted = {name: count for name, count in step.items() if name.startswith("nonfinite/worker")}
    name = f"nonfinite/worker_{rank}/{place}"
    told = [record.message for record in caplog.records if "not finite" in record.message]
    if place == "padding":
        assert (counted, told) == ({}, [])
    else:
        assert counted[name] == 1
        assert f"{place} of worker_{rank}" in told[0]
        # Nobody else had it, but for what follows from it where it goes to.
        assert all(each == name or each.endswith(("_loss", "_gradient")) for each in counted)
    assert trainer.run_log.summary.skipped_updates == len(reached)


def test_an_advantage_that_is_not_finite_costs_the_update_of_the_actor(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stage.kept()
    trainer = stage.trainer(tmp_path)
    estimate = trainer.estimation.of

    def planted(*given: Any) -> Any:
        experience, metrics = estimate(*given)
        last = experience.lengths_B[-1] - 1
        experience.advantages_BT[-1, last] = math.nan
        return experience, metrics

    monkeypatch.setattr(trainer.estimation, "of", planted)
    trainer.run()
    step = only_step(tmp_path)
    assert (step["critic/skipped"], step["update/skipped"]) == (0, 1)
    assert step["nonfinite/worker_1/actor_loss"] == 1
    after = stage.kept()
    assert after["actor"] == before["actor"]
    assert after["critic"] != before["critic"]


def test_a_rule_that_returns_nan_is_counted_and_gives_the_worst_score(
    stage: Stage, tmp_path: Path
) -> None:
    before = stage.kept()
    stage.trainer(tmp_path, "NaN").run()
    step = only_step(tmp_path)
    assert step["reward/errors"] == SAMPLING.samples_per_prompt
    assert (step["critic/skipped"], step["update/skipped"]) == (0, 0)
    assert not [name for name in step if name.startswith("nonfinite")]
    assert stage.kept()["actor"] != before["actor"]


@pytest.mark.parametrize(("place", "untouched"), [("critic_loss", BOTH), ("actor_gradient", ACTOR)])
def test_where_it_is_to_stop_the_run_ends_with_that_step_and_leaves_what_was_before(
    place: Place, untouched: frozenset[str], stage: Stage, tmp_path: Path
) -> None:
    before = stage.kept()
    trainer = stage.trainer(tmp_path, train_iters=3, save_interval=3, on_nonfinite="stop")
    stage.group.call_all("plant", [Plant(place=place, value=math.nan, rank=1)])
    with pytest.raises(NonfiniteError) as caught:
        trainer.run()
    (told,) = caught.value.args
    assert told.startswith("step 1: not finite: ")
    assert f"{place} of worker_1" in told
    assert told.endswith("; megatron_training.on_nonfinite=stop")
    after = stage.kept()
    assert {role for role in BOTH if after[role] == before[role]} == untouched
    # The checkpoint holds these very weights.
    commits = Commits(trainer.run_log.folder.checkpoints)
    assert commits.steps() == [1]
    more = tmp_path / "more"
    more.mkdir()
    stage.trainer(more).run()
    assert not any(stage.kept()[role] == after[role] for role in BOTH)
    left = commits.read(1)
    trainer.workers.restore(left.folder, left.state()["updates"])
    assert stage.kept() == after
