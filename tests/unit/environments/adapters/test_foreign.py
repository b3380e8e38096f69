"""What adapters share."""

import sys

import pytest
from playing import ADAPTERS, schemas

from mindrl.environments.adapters.foreign import as_text, library, row_seed
from mindrl.errors import ConfigError


def test_a_missing_package_is_named_with_its_command() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such is not installed; run: pip"):
        library("no_such.part", "such")


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("gymnasium:Gymnasium", "gymnasium"),
        ("textarena:TextArena", "textarena"),
        ("skyrl_gym:SkyrlGym", "skyrl-gym"),
        ("reasoning_gym:ReasoningGym", "reasoning-gym"),
    ],
)
def test_a_run_without_the_package_is_refused(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package.replace("-", "_"), None)
    with pytest.raises(ConfigError, match=rf"is not installed; run: pip install {package}"):
        schemas(f"{ADAPTERS}.{name}", {})


def test_observations_become_text() -> None:
    assert as_text("as it is") == "as it is"
    assert as_text({"a": 1, "b": (2, 3)}) == "a: 1\nb: 2, 3"
    messages = [{"role": "user", "content": "one"}, {"role": "tool", "content": "two"}]
    assert as_text(messages) == "one\n\ntwo"
    assert as_text([]) == ""


def test_the_seed_of_a_row_comes_before_a_random_one() -> None:
    assert row_seed({"seed": "12"}) == 12
    assert row_seed({}) != row_seed({})
