"""Whole runs with a tool or an agent: learning, order of answers, and runs that are killed."""

import signal
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from program import CHECKOUT, Program, start_program
from test_resume import OF_THIS_START

from mindrl.batch.rollouts import Rollouts
from mindrl.batch.sequence_trees import slots_of
from mindrl.programs.tiny import made_tool_user
from mindrl.trainer.rollout_files import RolloutFiles

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(1800)]

SHORT = (
    "megatron_training.train_iters=4",
    "megatron_training.save_interval=1",
    "megatron_training.keep_rollouts=4",
    "rl_config.test_freq=0",
)
LOCK_STEP = "environment_config.lock_step=true"
SLOW = f"environment_config.tools=[{CHECKOUT}/tests/e2e/slow_tools.py:add]"
KINDS = {
    "tool": (),
    "agent": (
        "environment_config.tools=[]",
        f"environment_config.agent={CHECKOUT}/tests/e2e/calculator_agent.py:solve",
        "environment_config.reward_weight=1.0",
    ),
}
FORGETS = (
    "{%- for m in messages -%}{{- '<|im_start|>' + m['role'] + '\\n' -}}"
    "{{- '' if m['role'] == 'assistant' else m['content'] -}}{{- '<|im_end|>\\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
"""Drops what earlier turns of the policy contain."""
CUTS = FORGETS.replace("'' if m['role']", "m['content'][:3] if m['role']")
"""Keeps three letters of each."""
PPO = """\
defaults: [grpo_tools_tiny_cpu, mindrl_critic_defaults, _self_]
critic_config: {lr: 1e-3, adam_beta2: 0.95, weight_decay: 0.0, lr_warmup_fraction: 0.07}
rl_config:
  {adv_estimator: gae, lam: 1.0, cliprange_value: 0.5, verifier_function: [], verifier_weight: []}
environment_config: {tools: [], reward_weight: 1.0}
"""
"""A configuration of a user, with the shipped one of tools and a critic."""
OF_THE_ORDER = (*OF_THIS_START, "staleness/rounds")


@pytest.fixture(scope="module")
def tool_user(tiny_model: Path) -> Path:
    return made_tool_user(tiny_model.parent, 1)


def run(folder: Path, tool_user: Path, *more: str) -> Program:
    asked = ["--config-name", "grpo_tools_tiny_cpu", f"actor_config.load={tool_user}", *more]
    return start_program(folder, asked, program="train")


def ended(program: Program) -> Program:
    assert program.process.wait(timeout=900) == 0, program.text()
    return program


def of_results(program: Program) -> list[dict[str, Any]]:
    """Return the metrics of all steps, without those of their order and their times."""
    return [
        {name: value for name, value in step.items() if not name.startswith(OF_THE_ORDER)}
        for step in program.steps()
    ]


def test_the_policy_learns_to_call_the_tool_and_is_trained_on_what_it_wrote(
    tool_user: Path, tmp_path: Path
) -> None:
    program = ended(run(tmp_path / "run", tool_user, "megatron_training.keep_rollouts=20"))
    steps = program.steps()
    first, last = ([step["turns/calls_mean"] for step in part] for part in (steps[:3], steps[-3:]))
    assert min(last) > max(first) + 0.2
    summary = program.summary()
    assert summary["accuracy_after"] > summary["accuracy_before"] + 0.3
    assert max(step["logprob_gap/mean"] for step in steps) < 1e-6
    rollouts = RolloutFiles(program.folder / "rollouts").read(20).rollouts
    mask_BT, all_BT = rollouts.response_mask_BT, rollouts.after_prompts()
    given = steps[-1]["turns/environment_tokens"]
    assert int(all_BT.sum() - mask_BT.sum()) == given > 0


def test_slow_tools_and_lock_step_change_no_bit(tool_user: Path, tmp_path: Path) -> None:
    plain = ended(run(tmp_path / "plain", tool_user, *SHORT))
    slow = ended(run(tmp_path / "slow", tool_user, *SHORT, SLOW))
    lock = ended(run(tmp_path / "lock", tool_user, *SHORT, LOCK_STEP))
    blocks = ended(
        run(tmp_path / "blocks", tool_user, *SHORT, "generate_config.kv_block_tokens=32")
    )
    assert of_results(plain) == of_results(slow) == of_results(lock) == of_results(blocks)
    assert max(step["turns/environment_seconds_max"] for step in slow.steps()) > 0.2


def test_a_history_that_is_rendered_is_trained_on_as_it_was_seen(
    tool_user: Path, tmp_path: Path
) -> None:
    template = tmp_path / "forgets.jinja"
    template.write_text(FORGETS, encoding="utf-8")
    program = ended(
        run(
            tmp_path / "run",
            tool_user,
            *SHORT,
            "environment_config.history=rendered",
            f"megatron_training.chat_template={template}",
        )
    )
    steps = program.steps()
    assert max(step["logprob_gap/mean"] for step in steps) < 1e-6
    assert min(step["turns/mean"] for step in steps) > 1.1
    rollouts = RolloutFiles(program.folder / "rollouts").read(4).rollouts
    assert rollouts.conversation_B is not None
    # Each turn has its own sequence, of the policy's tokens alone.
    assert len(rollouts) == 128 * steps[-1]["turns/mean"]
    assert rollouts.after_prompts().equal(rollouts.response_mask_BT)
    assert len(rollouts.response_tokens()) == 128


def test_turns_that_share_what_they_repeat_train_as_turns_computed_whole(
    tool_user: Path, tmp_path: Path
) -> None:
    template = tmp_path / "cuts.jinja"
    template.write_text(CUTS, encoding="utf-8")
    asked = (
        *(*SHORT, "megatron_training.train_iters=2", "megatron_training.test_data_path=null"),
        f"environment_config.environment={CHECKOUT}/tests/e2e/word_game.py:WordGame",
        *("environment_config.tools=[]", "environment_config.reward_weight=1.0"),
        *("environment_config.history=rendered", "rl_config.old_log_probs=recompute"),
        f"megatron_training.chat_template={template}",
    )
    shared, whole = (
        ended(run(tmp_path / value, tool_user, *asked, f"rl_config.share_prompts={value}"))
        for value in ("true", "false")
    )
    same = ("reward/", "turns/mean", "turns/ended", "rollout/response", "score/")
    for ours, theirs in zip(shared.steps(), whole.steps(), strict=True):
        names = [name for name in theirs if name.startswith(same)]
        assert len(names) > 8
        assert {name: ours[name] for name in names} == {name: theirs[name] for name in names}
        assert ours["logprob_gap/mean"] < 1e-6
        # Adam's first step of a gradient near zero has the sign of its rounding.
        assert ours["update/grad_norm"] == pytest.approx(theirs["update/grad_norm"], rel=2e-3)
    first, other = shared.steps()[0], whole.steps()[0]
    # Float32 sums of terms that cancel: the advantages of a group add to 0.
    assert first["update/grad_norm"] == pytest.approx(other["update/grad_norm"], rel=2e-5)
    rollouts = RolloutFiles(shared.folder / "rollouts").read(2).rollouts
    assert rollouts.tokens_BT.equal(
        RolloutFiles(whole.folder / "rollouts").read(2).rollouts.tokens_BT
    )
    turns, prompts = (
        sum(slot.length for slot in slots_of(each, shares_prompts=True))
        for each in (rollouts, replace(rollouts, tree_B=None))
    )
    assert turns < 0.8 * prompts < 0.8 * int(rollouts.lengths_B.sum())


def rewards_to_go(rollouts: Rollouts) -> list[float]:
    """Return for each sampled token the rewards of its turn and all later ones, by conversation."""
    mask_BT, rewards_BT = rollouts.response_mask_BT, rollouts.turn_rewards_BT
    assert rewards_BT is not None
    talk_B = rollouts.conversation_B
    numbers = [*range(len(rollouts))] if talk_B is None else talk_B.tolist()
    of_talks: dict[int, list[float]] = {}
    for row, number in enumerate(numbers):
        of_talks.setdefault(number, []).extend(rewards_BT[row][mask_BT[row]].tolist())
    return [sum(talk[at:]) for talk in of_talks.values() for at in range(len(talk))]


@pytest.mark.parametrize("history", ["kept", "rendered"])
def test_a_critic_learns_the_rewards_of_turns(
    history: str, tool_user: Path, tmp_path: Path
) -> None:
    """PPO with the returns of lambda 1: the sum of rewards to come, across sequences too."""
    (tmp_path / "ours.yaml").write_text(PPO, encoding="utf-8")
    template = tmp_path / "forgets.jinja"
    template.write_text(FORGETS, encoding="utf-8")
    asked = [
        *("--config-path", str(tmp_path), "--config-name", "ours", *SHORT),
        f"actor_config.load={tool_user}",
        f"environment_config.environment={CHECKOUT}/tests/e2e/word_game.py:WordGame",
        "megatron_training.test_data_path=null",
        f"environment_config.history={history}",
    ]
    if history == "rendered":
        asked.append(f"megatron_training.chat_template={template}")
    program = ended(start_program(tmp_path / "run", asked, program="train"))
    steps = program.steps()
    assert min(step["turns/mean"] for step in steps) > 1.5
    assert max(step["logprob_gap/mean"] for step in steps) < 1e-6
    assert steps[-1]["critic/value_loss"] < steps[0]["critic/value_loss"] / 2
    files = RolloutFiles(program.folder / "rollouts")
    for number, step in enumerate(steps, start=1):
        rollouts = files.read(number).rollouts
        assert (rollouts.conversation_B is None) == (history == "kept")
        expected = rewards_to_go(rollouts)
        assert len({*expected}) > 5
        # A mean of float32 sums.
        assert step["value/return_mean"] == pytest.approx(mean(expected), rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("partial", [False, True])
def test_a_killed_run_goes_on_to_the_same_bits(
    partial: bool, kind: str, tool_user: Path, tmp_path: Path
) -> None:
    more = [*SHORT, *KINDS[kind], "rl_config.rollout_round_steps=16"]
    if partial:
        # Without lock step the tokens of a round depend on how quickly the environments answer.
        more += ["rl_config.partial_rollout=true", "rl_config.max_staleness=2", LOCK_STEP]
    straight = ended(run(tmp_path / "straight", tool_user, *more))
    killed = run(tmp_path / "killed", tool_user, *more)
    killed.wait_for_steps(2)
    killed.process.send_signal(signal.SIGKILL)
    killed.process.wait(timeout=60)
    resumed = ended(run(tmp_path / "killed", tool_user, *more))
    assert of_results(resumed) == of_results(straight)
    if partial:
        assert any(step["staleness/open_groups"] for step in straight.steps())


APART = (
    "rl_config.use_integrated_worker=false",
    "rl_config.actor_resource.num_npus=1",
    "rl_config.rollout_resource.num_npus=1",
    "rl_config.rollout_round_steps=8",
)


def test_replicas_in_turns_with_training_hold_the_conversations_of_shared_devices(
    tool_user: Path, tmp_path: Path
) -> None:
    shared = (
        *("rl_config.actor_resource.num_npus=1", "megatron_training.train_iters=2"),
        "rl_config.test_freq=2",
    )
    runs = [
        ended(run(tmp_path / name, tool_user, *SHORT, *more))
        for name, more in {"apart": (*APART, *shared), "shared": shared}.items()
    ]
    same = ("reward/", "turns/mean", "turns/calls", "turns/environment_tokens", "turns/ended")
    for apart, together in zip(*(each.steps() for each in runs), strict=True):
        names = [name for name in together if name.startswith(same)]
        assert len(names) > 6
        assert {name: apart[name] for name in names} == {name: together[name] for name in names}
        assert apart["logprob_gap/mean"] < 1e-6
    for step in (0, 2):
        apart, together = (each.evaluations(step) for each in runs)
        assert [each["response"] for each in apart] == [each["response"] for each in together]
        assert any("<tool_call>" in each["response"] for each in apart)


@pytest.mark.parametrize("kind", KINDS)
def test_replicas_that_run_ahead_hold_conversations_over_steps(
    kind: str, tool_user: Path, tmp_path: Path
) -> None:
    more = (*APART, "rl_config.step_order=asynchronous", "rl_config.max_staleness=2")
    program = ended(run(tmp_path / "run", tool_user, *SHORT, *KINDS[kind], *more))
    steps = program.steps()
    assert len(steps) == 4
    assert max(step["turns/calls_mean"] for step in steps) > 0.2
    assert max(step["turns/ended_failed"] for step in steps) == 0.0
    assert max(step["logprob_gap/mean"] for step in steps) < 1e-6
