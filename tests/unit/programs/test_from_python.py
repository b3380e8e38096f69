"""What a Python program hands over: rewards by name, rows as a file, sections as overrides."""

import json
import math
import subprocess
import sys
import threading
from ast import literal_eval
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import most_at_night
from omegaconf import OmegaConf
from user_programs import python

import mindrl
from mindrl.errors import CallbackError, ConfigError, InterruptedRunError, StopRequestedError
from mindrl.launch.callbacks import Callbacks, StepView
from mindrl.programs.compose import override
from mindrl.programs.from_python import keep_rows, reward_name, reward_values
from mindrl.rewards.resolve import resolve_reward

NAMES = st.from_regex("[a-z]+", fullmatch=True)
NOT_NAMES = ["null", "true", "false", "nan", "inf", "", "a=b", "a:b", "é", "1"]
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: (
        st.lists(inner) | st.dictionaries(NAMES.filter(lambda name: name not in NOT_NAMES), inner)
    ),
)


@settings(max_examples=most_at_night(200))
@given(VALUES)
def test_any_value_is_read_from_its_override_as_it_was(value: object) -> None:
    parsed = OverridesParser.create().parse_override(override("section.key", value))
    whole = OmegaConf.create({"key": parsed.value()})
    assert OmegaConf.to_container(whole, resolve=True) == {"key": value}


@pytest.mark.parametrize("key", NOT_NAMES)
def test_a_key_that_an_override_cannot_name_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key!r} cannot be a key in an override"):
        override("rl_config.weights", {"fine": 1, key: 2})


@pytest.fixture
def nine_tenths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str, str], float]]:
    """Yield the function of a file beside a script."""
    text = "def nine_tenths(response, reference):\n    return 0.9 * (response == reference)\n"
    (tmp_path / "its_rewards.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    found: Callable[[str, str], float] = import_module("its_rewards").nine_tenths
    yield found
    del sys.modules["its_rewards"]


def test_a_function_is_named_so_that_another_process_finds_it(
    tmp_path: Path, nine_tenths: Callable[[str, str], float]
) -> None:
    name = reward_name(nine_tenths)
    assert name == f"{tmp_path}/its_rewards.py:nine_tenths"
    assert resolve_reward(name)("4", "4") == 0.9
    assert reward_values(["math_verify", nine_tenths]) == {
        "verifier_function": ["math_verify", name],
        "verifier_weight": [1.0, 1.0],
    }
    assert reward_values({nine_tenths: 2})["verifier_weight"] == [2.0]


def test_a_function_of_a_package_keeps_its_dotted_name() -> None:
    assert reward_name(keep_rows) == "mindrl.programs.from_python:keep_rows"


def test_what_no_other_process_finds_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, nine_tenths: Callable[[str, str], float]
) -> None:
    notebook = ModuleType("a_notebook")
    exec("def of_a_cell(response, reference):\n    return 1.0\n", vars(notebook))
    monkeypatch.setitem(sys.modules, "a_notebook", notebook)

    def inner(response: str, _reference: str) -> float:
        return float(len(response))

    unnamed = (lambda *_: 1.0, inner, partial(nine_tenths, "4"))
    for reward in unnamed:
        with pytest.raises(ConfigError, match="no module contains it under its name"):
            reward_name(reward)
    with pytest.raises(ConfigError, match=r"in a notebook.*%%writefile my_reward.py"):
        reward_name(notebook.of_a_cell)


def test_rows_become_a_file_that_a_run_goes_on_with(tmp_path: Path) -> None:
    # Half of a character: UTF-8 cannot have it.
    rows = [{"messages": "1+2=?", "answer": "\ud83d"}, {"prompt": "\u4e8c", "answer": "2"}]
    keep_rows(tmp_path, "train_dataset", iter(rows), goes_on=False)
    lines = (tmp_path / "data/train_dataset.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line) for line in lines] == rows
    keep_rows(tmp_path, "train_dataset", rows, goes_on=True)
    with pytest.raises(ConfigError, match="its rows differ from those of the run in "):
        keep_rows(tmp_path, "train_dataset", rows[:1], goes_on=True)
    keep_rows(tmp_path, "train_dataset", rows[:1], goes_on=False)
    assert len((tmp_path / "data/train_dataset.jsonl").read_text("utf-8").splitlines()) == 1


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("prompt", r"row 2: 'prompt' must be a mapping of columns; for a pandas DataFrame"),
        ({"prompt": {1, 2}}, r"row 2: not JSON: Object of type set"),
        ({"prompt": math.nan}, r"row 2: not JSON: Out of range float"),
    ],
)
def test_a_row_that_is_none_is_named(tmp_path: Path, row: object, said: str) -> None:
    with pytest.raises(ConfigError, match=f"train_dataset, {said}"):
        keep_rows(tmp_path, "train_dataset", [{"prompt": "a"}, row], goes_on=False)
    assert not (tmp_path / "data/train_dataset.jsonl").exists()


def test_a_callback_sees_metrics_that_it_cannot_change_and_may_stop_the_run() -> None:
    seen: list[StepView] = []
    callbacks = Callbacks([seen.append, lambda view: view.step == 2 and view.stop()])
    for step in (1, 2, 3):
        callbacks.log(step, {"reward/mean": 0.5})
        assert (callbacks.stopped_after is None) == (step == 1)
    assert [each.step for each in seen] == [1, 2, 3]
    with pytest.raises(TypeError):
        seen[0].metrics["reward/mean"] = 1.0  # type: ignore[index]
    with pytest.raises(StopRequestedError, match="after step 2"):
        callbacks.check_interrupt()


def test_a_callback_that_fails_is_named_once_its_record_is_written_and_none_is_called_again() -> (
    None
):
    seen: list[StepView] = []

    def judge(view: StepView) -> None:
        if view.step == 2:
            raise KeyError("reward/brevity")

    callbacks = Callbacks([judge, seen.append])
    for step in (1, 2, 3):
        callbacks.log(step, {"reward/mean": 0.5})
    assert [each.step for each in seen] == [1]
    said = r"judge raised KeyError after step 2: 'reward/brevity'$"
    for ends in (callbacks.check_interrupt, callbacks.require):
        with pytest.raises(CallbackError, match=said) as error:
            ends()
        assert isinstance(error.value.__cause__, KeyError)


def test_a_signal_that_arrives_in_a_callback_is_no_failure_of_it() -> None:
    def interrupted(_: StepView) -> None:
        raise InterruptedRunError("stopped by SIGTERM")

    callbacks = Callbacks([interrupted])
    with pytest.raises(InterruptedRunError, match="SIGTERM"):
        callbacks.log(1, {})
    callbacks.require()


def test_training_is_refused_where_it_could_not_be_interrupted_or_would_wait_for_itself(
    tmp_path: Path,
) -> None:
    said: list[str] = []

    def in_a_thread() -> None:
        with pytest.raises(ConfigError) as error:
            mindrl.train()
        said.append(str(error.value))

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()
    assert "main thread" in said[0]
    script = tmp_path / "script.py"
    script.write_text("import mindrl\ndef reward(a, b): return 1.0\nmindrl.train()\n")
    with pytest.raises(ConfigError, match=r"cannot import .*script.py: .*below `if __name__ =="):
        resolve_reward(f"{script}:reward")


MISTAKES = {
    "train('grpo_tiny')": "has no configuration grpo_tiny; did you mean grpo_tiny_cpu, grpo_",
    "train('my.yaml')": "config='my.yaml': no file at ",
    "train(rl_config={'n_sample_per_prompt': 4})": "did you mean rl_config.n_samples_per_prompt?",
    "train(rl_confg={'device': 'cpu'})": "did you mean 'rl_config'?",
    "train(learning_rate=1e-5)": "no argument learning_rate; write actor_config={'lr': 1e-05}",
    "train(train_iters=2)": "write megatron_training={'train_iters': 2}",
    "train(num_npus=8)": "write rl_config={'actor_resource': {'num_npus': 8}}",
    "train(model='x', adv_estimator='grpo')": (
        "train() has no argument model; write actor_config={'load': 'x'}\n"
        "train() has no argument adv_estimator; write rl_config={'adv_estimator': 'group_norm'}"
    ),
    "train(reward_funcs=[print])": "write reward_functions=[my_reward]",
    "train(zzz=1)": "train() has no argument zzz; the sections are megatron_training, ",
    "train(rl_config=None)": "rl_config=None must be a dict of keys, such as rl_config={'use_",
    "train(rl_config={1: 2})": "rl_config={1: 2} must be a dict of keys",
    "train(reward_functions=print)": "must be a list or a mapping with weights, such as reward_",
    "train(reward_functions='math_verify')": "reward_functions='math_verify' must be a list",
    "train(reward_functions={print: 'x'})": "must be functions with weights, such as {my_reward:",
    "train(callbacks=print)": "must be a list of functions, such as callbacks=[my_callback]",
    "train(train_dataset=5)": "train_dataset=5 must be a data file or rows, such as ",
    "train(config=None)": "config=None must be the name of a configuration or a YAML file",
    "train(output_dir=5)": "output_dir=5 must be a folder",
    "train(rl_config={'n_samples_per_prompt': 'many'})": "n_samples_per_prompt",
    "train(reward_functions=['math_verifier'])": "did you mean 'math_verify'?",
}


def test_mistakes_are_named_before_anything_starts(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    lines = ["from mindrl import train"]
    for call in MISTAKES:
        lines += ["try:", f"    {call}", "except Exception as error:", "    print([str(error)])"]
    program.write_text("\n".join(lines))
    ended = python(str(program), folder=tmp_path)
    said = ended.stdout.splitlines()
    assert len(said) == len(MISTAKES), ended.stderr
    for words, (call, need) in zip(said, MISTAKES.items(), strict=True):
        assert need in literal_eval(words)[0], call


def test_the_types_of_the_sections_are_those_of_the_configuration() -> None:
    script = Path(__file__).parents[3] / "scripts" / "make_section_types.py"
    command = [sys.executable, str(script), "--check"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
