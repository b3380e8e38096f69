"""The output of a training program for a common mistake, before it starts anything."""

import re
from pathlib import Path

import pytest
from bad_inputs import row
from mistaken import Said

from mindrl.data.run_data import read_data
from mindrl.launch.reward_trials import try_all_rewards
from mindrl.platform.device import PLATFORMS
from mindrl.preflight.checks import check
from mindrl.programs.compose import composed_config
from mindrl.programs.exits import exit_code

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quickstart's model before its warm start, beside a data file of two rows."""
    from mindrl.tiny.chat_model import build_model, build_tokenizer

    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(folder / "model")
    build_model(tokenizer, seed=1).save_pretrained(folder / "model")
    (folder / "rows.jsonl").write_text(f"{row('1+1=?')}\n{row('2+0=?')}\n")
    return folder


@pytest.fixture
def said(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Said:
    """Return exit code and words of a program; places in the test's own folder are relative."""

    def answer(overrides: list[str]) -> tuple[int, str]:
        def prepare() -> int:
            config = composed_config("grpo_tiny_cpu", [*files, *overrides])
            check(config, PLATFORMS["cpu"])
            try_all_rewards(config, read_data(config))
            return 0

        files = [f"actor_config.load={tiny}/model"]
        files += [
            f"megatron_training.{key}={tiny}/rows.jsonl" for key in ("data_path", "test_data_path")
        ]
        files += ["data_config.test_overlap_policy=allow"]
        code = exit_code(prepare)
        text = "".join(capsys.readouterr())
        for folder in (tmp_path, tiny, ROOT):
            text = text.replace(f"{folder}/", "")
        return code, re.sub("0x[0-9a-f]+", "0x..", text)

    return answer
