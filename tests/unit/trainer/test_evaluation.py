"""Several evaluation sets, each with a name and sampling of its own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from memory_roles import PROMPTS, MemoryRoles, config, data, lines, rewards, run_log

from mindrl.config.data import DataConfig, EvalSet
from mindrl.config.generate import SamplingConfig
from mindrl.data.prompts import PromptSet
from mindrl.trainer.policy_trainer import PolicyTrainer

HARD = EvalSet(
    name="hard",
    data_path="none",
    samples=2,
    temperature=0.6,
    top_p=0.9,
    top_k=20,
    min_p=0.05,
    max_tokens=7,
)
EASY = EvalSet(name="easy", data_path="none")


def build(
    root: Path, roles: MemoryRoles, *, best_by: str | None = None, test: Any = (), **changes: Any
) -> PolicyTrainer:
    sets = DataConfig(eval_sets=(HARD, EASY), best_by=best_by)
    chosen = replace(config(**changes), data_config=sets)
    prompts = {"hard": PROMPTS[:3], "easy": PROMPTS[:1]}
    found = {
        name: PromptSet(path="none", prompts=each, dropped=0) for name, each in prompts.items()
    }
    return PolicyTrainer(
        chosen,
        replace(data(test), eval_sets=found),
        roles,
        rewards(roles),
        run_log(root, chosen.megatron_training.train_iters),
        max_logprob_gap=0.1,
    )


def test_each_set_is_answered_with_its_own_sampling(tmp_path: Path) -> None:
    roles = MemoryRoles()
    build(tmp_path, roles).evaluate(0)
    (uids, hard, _), (few, easy, _) = roles.asked
    assert (uids, few) == ([0, 1, 2], [0])
    assert (hard.samples_per_prompt, hard.is_greedy) == (2, False)
    assert hard.section == SamplingConfig(
        temperature=0.6, top_p=0.9, top_k=20, min_p=0.05, max_tokens=7
    )
    assert (easy.samples_per_prompt, easy.is_greedy, easy.section.max_tokens) == (1, True, 2)
    assert {each.stop_token_ids for each in (hard, easy)} == {(1,)}


def test_a_set_has_metrics_answers_and_a_line_of_the_summary_of_its_own(tmp_path: Path) -> None:
    # The second of two answers is right, and a single one is wrong.
    trainer = build(tmp_path, MemoryRoles())
    trainer.run()
    hard, easy = lines(tmp_path / "metrics.jsonl")[:2]
    assert (hard["step"], hard["eval/hard/avg@2"], hard["eval/hard/pass@2"]) == (0, 0.5, 1.0)
    assert hard["eval/hard/avg@2_low"] < 0.5 < hard["eval/hard/avg@2_high"]
    assert (easy["eval/easy/avg@1"], "evaluation/accuracy" in easy) == (0.0, False)
    answers = lines(tmp_path / "evaluations" / "hard.jsonl")
    assert [(each["step"], each["reward"]) for each in answers[:3]] == [(0, 0), (0, 1), (0, 0)]
    assert [each["step"] for each in lines(tmp_path / "evaluations" / "easy.jsonl")] == [0, 1]
    summary = trainer.run_log.close()
    assert summary["evaluations"]["hard"]["after"]["pass@2"] == 1.0
    assert summary["accuracy_after"] is None


def test_the_held_out_file_is_measured_as_without_sets(tmp_path: Path) -> None:
    alone, roles = MemoryRoles(), MemoryRoles()
    trainer = build(tmp_path, roles, test=PROMPTS[:2])
    trainer.evaluate(0)
    assert roles.asked[0][1].is_greedy
    found = lines(tmp_path / "metrics.jsonl")[0]
    assert (found["evaluation/accuracy"], found["evaluation/accuracy_low"]) == (0.0, 0.0)
    # Wilson's interval of none right out of two.
    assert found["evaluation/accuracy_high"] == pytest.approx(1.96**2 / (2 + 1.96**2), rel=1e-3)
    assert not alone.asked


def test_the_best_is_chosen_by_the_named_set_else_by_the_file_else_by_the_first(
    tmp_path: Path,
) -> None:
    chosen = {}
    for best_by, test in [("easy", ()), (None, ()), (None, PROMPTS[:1]), ("hard", PROMPTS[:1])]:
        folder = tmp_path / f"{best_by}{len(test)}"
        folder.mkdir()
        trainer = build(folder, MemoryRoles(), best_by=best_by, test=test)
        chosen[best_by, len(test)] = trainer.evaluate(0)
    # hard is half right, easy and the file are wrong.
    assert chosen == {("easy", 0): 0.0, (None, 0): 0.5, (None, 1): 0.0, ("hard", 1): 0.5}


def test_what_was_measured_before_is_still_known_behind_a_resume(tmp_path: Path) -> None:
    trainer = build(tmp_path, MemoryRoles())
    trainer.evaluate(0)
    state = trainer.state()
    again = build(tmp_path, MemoryRoles())
    again.resume(1, state)
    assert again.run_log.summary.evaluations == trainer.run_log.summary.evaluations
