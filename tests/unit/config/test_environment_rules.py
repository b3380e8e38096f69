"""Rules of `environment_config`, and the files by which a resumed run knows its environments."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mindrl.config.run import RunConfig
from mindrl.config.validate import findings
from mindrl.errors import ConfigError
from mindrl.trainer.inputs import input_prints

MakeConfig = Callable[..., RunConfig]
GAMES = str(Path(__file__).parents[1] / "environments/games.py")


def named(*names: str) -> dict[str, Any]:
    environments = [{"name": name, "environment": f"{GAMES}:Guess"} for name in names]
    section = {"environments": environments}
    return {"environment_config": section, "rl_config.use_dynamic_bsz": True}


def of_section(config: RunConfig) -> list[str]:
    return [text for text in map(str, findings(config)) if "environment_config" in text]


def test_names_alone_are_enough_and_each_is_given_once(run_config: MakeConfig) -> None:
    assert of_section(run_config(Path("model"), named("a", "b"))) == []
    (text,) = of_section(run_config(Path("model"), named("a", "b", "a")))
    assert text.startswith("environment_config.environments has a more than once")
    with pytest.raises(ConfigError, match=r"environment_config\.environments\.0\.name"):
        run_config(Path("model"), named(""))


def test_the_files_of_named_environments_are_inputs_of_a_run(run_config: MakeConfig) -> None:
    prints = input_prints(run_config(Path("model"), named("a")))
    ((file, *_),) = prints["environment_config.environments"]
    assert file == "games.py"


def test_an_agent_whose_packages_are_elsewhere_is_an_input_of_a_run(
    run_config: MakeConfig, tmp_path: Path
) -> None:
    agent = tmp_path / "my_agent.py"
    agent.write_text("import a_package_of_another_interpreter\n\ndef solve(**_): ...\n")
    keys = {"environment_config.agent": f"{agent}:solve", "rl_config.use_dynamic_bsz": True}
    config = run_config(Path("model"), keys)
    assert of_section(config) == []
    before = input_prints(config)["environment_config.agent"]
    agent.write_text(f"{agent.read_text()}\n# changed\n")
    ((file, *_),) = after = input_prints(config)["environment_config.agent"]
    assert file == "my_agent.py"
    assert after != before
