"""From a name in the configuration to a reward function, or to a message that helps."""

from pathlib import Path

import pytest

from mindrl.errors import ConfigError
from mindrl.rewards.functions import boxed_format, math_verify
from mindrl.rewards.resolve import resolve_reward


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_both_builtins_resolve_by_name_and_by_path() -> None:
    assert resolve_reward("math_verify") is math_verify
    assert resolve_reward("boxed_format") is boxed_format
    assert resolve_reward("mindrl.rewards.functions:math_verify") is math_verify


def test_two_files_of_one_name_give_their_own_functions(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "reward.py", f"def name(r, a): return {ord(folder)}.0")
    assert resolve_reward(f"{tmp_path}/a/reward.py:name")("", "") == 97.0
    assert resolve_reward(f"{tmp_path}/b/reward.py:name")("", "") == 98.0


def test_a_file_may_define_dataclasses_and_callable_objects(tmp_path: Path) -> None:
    file = write(
        tmp_path / "judge.py",
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Judge:\n    bonus: float\n"
        "    def __call__(self, response: str, reference: str) -> float: return self.bonus\n"
        "judge = Judge(0.5)\n",
    )
    assert resolve_reward(f"{file}:judge")("", "") == 0.5


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("math_verfy", "did you mean 'math_verify'?"),
        ("format", "did you mean 'boxed_format'?"),
        ("zzz", "builtins: acc_for_dapo, base_acc, boxed_format, math_verify, math_verify_reward"),
        ("no_such_package.rewards:score", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("/no/such/rewards.py:score", "no file at /no/such/rewards.py"),
        ("mindrl.rewards.functions:math_verfy", "did you mean 'math_verify'?"),
        ("mindrl.rewards.functions:MAX_BOXED_CHARACTERS", "is 4096 of type int; need a function"),
        ("mindrl.rewards.functions:last_boxed", "(text: str) -> str | None; need (response"),
        ("mindrl.rewards.functions:", "has no ''"),
        (":score", "does not import"),
    ],
)
def test_a_wrong_name_is_refused_with_the_field_and_the_need(name: str, needed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_reward(name)
    assert f"rl_config.verifier_function={name!r}" in str(caught.value)
    assert needed in str(caught.value)


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("import no_such_package", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("def score(:", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def score(prompt, reference): return 1.0", "has the signature (prompt, reference); need"),
        ("\n\nasync def score(a, b): yield 1.0", "reward.py:3) is a generator; need a function"),
        ("class score:\n  def judge(self): pass", "whose objects cannot be called"),
        ("def score(a, b): return 1.0\nscore.score_range = 1", "need (lowest, highest)"),
        ("def score(a, b): return 1.0\nscore.score_range = (1, 0)", "need (lowest, highest)"),
    ],
)
def test_a_file_that_cannot_serve_is_refused_with_its_own_error(
    text: str, needed: str, tmp_path: Path
) -> None:
    file = write(tmp_path / "reward.py", text)
    with pytest.raises(ConfigError, match=r"rl_config\.verifier_function") as caught:
        resolve_reward(f"{file}:score")
    assert needed in str(caught.value)
