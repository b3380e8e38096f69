"""From a name in the configuration to a reward function, or to a message that helps."""

from pathlib import Path

import pytest

from mindrl.config.reward_columns import own_signature
from mindrl.errors import ConfigError
from mindrl.rewards.functions import boxed_format, math_verify
from mindrl.rewards.resolve import resolve_reward, signature_of_reward


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
        ("zzz", "built-ins: acc_for_dapo, base_acc, boxed_format, math_verify, math_verify_reward"),
        ("no_such_package.rewards:score", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("/no/such/rewards.py:score", "no file at /no/such/rewards.py"),
        ("mindrl.rewards.functions:math_verfy", "did you mean 'math_verify'?"),
        (
            "mindrl.rewards.functions:MAX_BOXED_CHARACTERS",
            ("is 4096 of type int; need a function"),
        ),
        ("mindrl.rewards.functions:last_boxed", "(text: str) -> str | None; need (response"),
        ("mindrl.rewards.functions:", "has no ''"),
        (":score", "cannot import"),
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
        ("class score:\n  def judge(self): pass", "is a class without __call__"),
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


def test_a_file_beside_the_reward_that_it_imports_is_named_with_its_folder(tmp_path: Path) -> None:
    write(tmp_path / "my_parts_of_rewards.py", "WEIGHT = 1.0")
    file = write(tmp_path / "reward.py", "from my_parts_of_rewards import WEIGHT")
    with pytest.raises(ConfigError) as caught:
        resolve_reward(f"{file}:score")
    hint = f"my_parts_of_rewards is in the same folder: set PYTHONPATH={tmp_path}"
    assert str(caught.value).endswith(f"No module named 'my_parts_of_rewards'; {hint}")
    other = write(tmp_path / "other.py", "import no_such_package_at_all")
    with pytest.raises(ConfigError, match=r"No module named 'no_such_package_at_all'$"):
        resolve_reward(f"{other}:score")


METHODS = """
class R:
    bonus = 0.5
    def score(self, response, reference): return self.bonus
    @classmethod
    def of_class(cls, response, reference): return cls.bonus + 1
    @staticmethod
    def alone(response, reference): return 2.5
made = R()
"""


def test_methods_of_an_object_or_of_a_class_itself_are_functions(tmp_path: Path) -> None:
    file = write(tmp_path / "methods.py", METHODS)
    names = ("made.score", "R.of_class", "R.alone")
    assert [resolve_reward(f"{file}:{name}")("", "") for name in names] == [0.5, 1.5, 2.5]


def test_a_method_without_its_object_says_how_to_give_it_one(tmp_path: Path) -> None:
    file = write(tmp_path / "methods.py", METHODS)
    with pytest.raises(ConfigError) as caught:
        resolve_reward(f"{file}:R.score")
    assert str(caught.value) == (
        f"rl_config.verifier_function='{file}:R.score' is a method and needs an object; "
        f"add `made = R()` to the file and write '{file}:made.score', or give R a "
        f"__call__ and write '{file}:R'"
    )
    with pytest.raises(ConfigError, match=r"has no 'scor'; did you mean 'score'"):
        resolve_reward(f"{file}:made.scor")


FACTORIES = """
def limit(max_length: int, cache: int = 2):
    if cache > max_length: raise ValueError("cache above max_length")
    def punishment(completion_ids, **columns):
        return [float(max_length - cache >= len(ids)) for ids in completion_ids]
    return punishment
"""


def test_what_a_factory_makes_of_its_arguments_is_the_reward_as_in_trl(tmp_path: Path) -> None:
    name = f"{write(tmp_path / 'factories.py', FACTORIES)}:limit"
    reward = resolve_reward(name, kwargs={"max_length": 4})
    assert reward([[7], [7, 7, 7]]) == [1.0, 0.0]
    assert signature_of_reward(reward).is_batch
    # Its `**columns` take all columns of the rows, also of those that are read for it.
    assert own_signature("rl_config.verifier_function", name, {"max_length": 4}).columns is None
    with pytest.raises(ConfigError, match=r"cannot be created with .*: ValueError: cache above"):
        resolve_reward(name, kwargs={"max_length": 1})
    with pytest.raises(ConfigError, match=r"has the signature .*max_length"):
        resolve_reward(name)
