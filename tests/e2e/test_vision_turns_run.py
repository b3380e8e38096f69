"""Whole runs whose environment shows a picture in a later turn, also killed ones."""

import json
import signal
from pathlib import Path

import pytest
from program import CHECKOUT, Program, start_program
from test_vision_run import AHEAD, GAP, SHORT, ended, of_results

from mindrl.programs.tiny import made_counter
from mindrl.tiny.vision.squares import QUESTION
from mindrl.trainer.rollout_files import RolloutFiles

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(1800)]

GAME = f"""\
defaults: [grpo_vision_tiny_cpu, mindrl_environment_defaults, _self_]
megatron_training: {{seq_length: 160}}
environment_config: {{environment: "{CHECKOUT}/tests/e2e/square_game.py:SquareGame", max_turns: 3}}
rl_config: {{use_dynamic_bsz: true}}
generate_config: {{max_model_len: 160, sampling_config: {{max_tokens: 96}}}}
"""
"""A configuration of a user: the shipped one of pictures, with a game."""


@pytest.fixture(scope="module")
def counter() -> tuple[Path, Path]:
    """Return the folders of the pictures and of the model."""
    return made_counter(CHECKOUT / ".cache/tiny", 1)


def run(folder: Path, counter: tuple[Path, Path], *more: str) -> Program:
    squares, model = counter
    (folder.parent / "game.yaml").write_text(GAME, encoding="utf-8")
    return start_program(
        folder,
        [
            *("--config-path", str(folder.parent), "--config-name", "game"),
            f"actor_config.load={model}",
            f"megatron_training.data_path={squares}/train.jsonl",
            f"megatron_training.test_data_path={squares}/test.jsonl",
            f"data_config.images.folder={folder.parent}/kept",
            *more,
        ],
        program="train",
    )


def games_end(steps: list[dict[str, float]]) -> None:
    """Check that each game ends, or its last answer is one of the few that reach the limit."""
    assert len(steps) == 4
    for step in steps:
        cut = step["rollout/cut_fraction"]
        assert cut < 0.1
        assert (step["turns/ended_done"], step["turns/ended_tokens"]) == (1 - cut, cut)


def test_what_a_game_shows_is_seen_masked_and_reported(
    counter: tuple[Path, Path], tmp_path: Path
) -> None:
    program = ended(run(tmp_path / "run", counter, *SHORT, "rl_config.test_freq=4"))
    steps = program.steps()
    assert max(step["logprob_gap/max"] for step in steps) < 1e-5
    games_end(steps)
    rollouts = RolloutFiles(program.folder / "rollouts").read(4).rollouts
    assert rollouts.image_numbers_BI is not None
    assert rollouts.image_numbers_BI.shape == (128, 2)
    for row, ((_, asked), (_, given)) in enumerate(rollouts.images()):
        first = int(rollouts.response_mask_BT[row].int().argmax())
        assert asked < first < given
        assert not rollouts.response_mask_BT[row, given]
    page = (program.folder / "report.html").read_text(encoding="utf-8")
    start = page.index(">", page.index('id="data"')) + 1
    (shown,) = json.loads(page[start : page.index("</script>", start)])["runs"]
    pieces = [row["conversation"]["pieces"] for row in shown["samples"]]
    assert {each["by"] for talk in pieces for each in talk} == {"policy", "user"}
    for row, talk in zip(shown["samples"], pieces, strict=True):
        (given_,) = [each for each in talk if each["by"] == "user"]
        assert given_["text"] == QUESTION
        assert {*given_["pictures"], *row["pictures"]} <= shown["thumbnails"].keys()
        assert len(row["pictures"]) == len(given_["pictures"]) == 1
    kinds = {row["kind"] for row in shown["samples"]}
    assert kinds == {"step", "evaluation"}


@pytest.mark.parametrize("partial", [False, True])
def test_a_killed_run_goes_on_to_the_same_bits(
    partial: bool, counter: tuple[Path, Path], tmp_path: Path
) -> None:
    more = [*SHORT]
    if partial:
        more += ["rl_config.partial_rollout=true", "rl_config.max_staleness=2"]
        more += ["rl_config.rollout_round_steps=3", "environment_config.lock_step=true"]
    straight = ended(run(tmp_path / "straight", counter, *more))
    killed = run(tmp_path / "killed", counter, *more)
    killed.wait_for_steps(2)
    killed.process.send_signal(signal.SIGKILL)
    killed.process.wait(timeout=60)
    resumed = ended(run(tmp_path / "killed", counter, *more))
    assert of_results(resumed) == of_results(straight)
    assert max(step[GAP] for step in straight.steps()) < 1e-6
    if partial:
        assert any(step["staleness/open_groups"] for step in straight.steps())


def test_replicas_that_run_ahead_are_shown_the_pictures(
    counter: tuple[Path, Path], tmp_path: Path
) -> None:
    steps = ended(run(tmp_path / "run", counter, *SHORT, *AHEAD)).steps()
    gaps = [step[GAP] for step in steps if GAP in step]
    assert gaps
    assert max(gaps) < 1e-6
    games_end(steps)
