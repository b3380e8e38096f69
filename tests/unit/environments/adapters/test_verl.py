"""Tools of verl: with its library, and written like its tools."""

import json
from pathlib import Path

import pytest
import yaml
from playing import ADAPTERS, call, played, schemas, texts
from verl_tools import SCHEMA

from mindrl.environments.messages import EnvironmentAnswer

VERL = f"{ADAPTERS}.verl:VerlTools"
KWARGS = {"check_answer": {"create_kwargs": {"ground_truth": "5"}}}
ROW = {"extra_info": {"tools_kwargs": KWARGS}}


def tools_file(folder: Path, module: str) -> dict[str, str]:
    tool = {
        "class_name": f"{module}.CheckAnswer",
        "config": {"type": "native", "penalty": -0.25},
        "tool_schema": SCHEMA,
    }
    (folder / "tools.yaml").write_text(yaml.safe_dump({"tools": [tool]}))
    return {"tool_config_path": str(folder / "tools.yaml")}


@pytest.mark.parametrize("module", ["verl_tools", "verl_real_tools"])
def test_a_tool_has_an_instance_for_the_conversation_and_all_rewards_are_added(
    module: str, tmp_path: Path
) -> None:
    if module == "verl_real_tools":
        pytest.importorskip("verl")
    arguments = tools_file(tmp_path, module)
    assert schemas(VERL, arguments) == [SCHEMA]
    turns = [call("check_answer", answer="4"), call("check_answer", answer="5"), call("ask"), "5"]
    opening, answers = played(VERL, arguments, turns, ROW)
    assert opening is None
    wrong, right, unknown = texts(answers)
    assert (wrong, right) == ("right: False", "right: True")
    assert json.loads(unknown)["error"] == "KeyError: 'no tool ask; there are: check_answer'"
    assert answers[-1] == EnvironmentAnswer(reward=0.75, done=True)


def test_the_column_tools_kwargs_is_read_too(tmp_path: Path) -> None:
    turns = [call("check_answer", answer="5"), "5"]
    _, answers = played(VERL, tools_file(tmp_path, "verl_tools"), turns, {"tools_kwargs": KWARGS})
    assert answers[-1].reward == 1.0
