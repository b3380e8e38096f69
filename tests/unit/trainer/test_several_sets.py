"""A run that trains on several data sets, and its resume."""

from dataclasses import replace
from pathlib import Path

import pytest
from memory_roles import PROMPTS, MemoryRoles, config, data, rewards, run_log

from mindrl.config.data import DataConfig, TrainSet
from mindrl.data.prompts import PromptSet
from mindrl.trainer.policy_trainer import PolicyTrainer


def build(root: Path, roles: MemoryRoles, *, reproducible: bool = True) -> PolicyTrainer:
    """Train 5 steps of 2 prompts on sets of 1 and 3 rows with weights 1 and 2."""
    given = config(train_iters=5, reproducible_sampling=reproducible)
    sets = tuple(
        TrainSet(name=name, data_path="none", weight=weight)
        for name, weight in (("one", 1.0), ("three", 2.0))
    )
    parts = [
        PromptSet(path="none", prompts=prompts, dropped=0) for prompts in (PROMPTS[:1], PROMPTS[1:])
    ]
    return PolicyTrainer(
        replace(given, data_config=DataConfig(train_sets=sets)),
        replace(data(), parts=parts),
        roles,
        rewards(roles),
        run_log(root, 5),
        max_logprob_gap=0.1,
    )


def test_a_run_that_goes_on_asks_the_prompts_of_one_that_was_never_stopped(tmp_path: Path) -> None:
    whole, rest = MemoryRoles(), MemoryRoles()
    build(tmp_path, whole).run()
    asked = [uids for uids, _, _ in whole.asked]
    # Of each three prompts one is row 0, the only one of its set.
    assert [uid == 0 for uids in asked for uid in uids][:9] == [False, True, False] * 3
    first = build(tmp_path, MemoryRoles())
    for step in range(1, 4):
        first.recorded_step(step)
    later = build(tmp_path, rest)
    later.resume(3, first.state())
    later.run()
    assert [uids for uids, _, _ in rest.asked] == asked[3:]


@pytest.mark.parametrize("reproducible", [True, False])
def test_sequences_have_seeds_of_their_own_where_the_run_is_to_be_reproducible(
    reproducible: bool, tmp_path: Path
) -> None:
    roles = MemoryRoles()
    build(tmp_path, roles, reproducible=reproducible).step(1)
    assert {sampling.is_seeded for _, sampling, _ in roles.asked} == {reproducible}
