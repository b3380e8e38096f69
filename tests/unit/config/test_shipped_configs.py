"""Every configuration file that is shipped, and every key that can be written into one."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException
from nightly import at_night_but

from mindrl.allocation.into_config import with_sizes
from mindrl.config.hydra_defaults import plain_values, register_defaults
from mindrl.config.load import Hint, load_run_config
from mindrl.config.run import RunConfig
from mindrl.config.section import documented_fields
from mindrl.config.validate import findings
from mindrl.programs import compose as programs_compose
from mindrl.programs.config_files import run_names

CONFIGS = Path(__file__).parents[3] / "configs"
RUNS = run_names(CONFIGS)
RECIPES = [path.stem for path in sorted((CONFIGS / "recipe").glob("*.yaml"))]


def composed(name: str, overrides: list[str]) -> dict[str, Any]:
    register_defaults()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return plain_values(compose(name, overrides))


def sections(section: Any = RunConfig, path: str = "") -> Iterator[tuple[str, Any]]:
    yield path, section
    for name, hint in get_type_hints(section).items():
        for kind in (hint, *get_args(hint)):
            if is_dataclass(kind):
                yield from sections(kind, f"{path}{name}.")


KEYS = [f"{path}{field.name}" for path, section in sections() for field in fields(section)]


def test_every_file_is_a_run_or_one_of_four_parts_of_runs_and_there_are_eighty_keys() -> None:
    parts = {path.stem for path in CONFIGS.glob("*.yaml")} - set(RUNS)
    assert parts == {"ascend", "atlas_a2", "atlas_a3", "program"}
    assert len(RUNS) >= 15
    assert len(KEYS) >= 80


@pytest.mark.parametrize("name", RUNS)
def test_a_shipped_run_composes_loads_and_has_no_findings(name: str) -> None:
    assert findings(load_run_config(with_sizes(composed(name, [])))) == []


@pytest.mark.parametrize(
    "run",
    at_night_but(["grpo_qwen25_7b"], ["grpo_tiny_cpu", "grpo_tiny_moe_cpu", "grpo_qwen25_7b"]),
)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_goes_on_top_of_any_run_and_changes_the_algorithm_alone(
    recipe: str, run: str
) -> None:
    asked = [f"+recipe={recipe}"]
    before, after = (load_run_config(with_sizes(composed(run, each))) for each in ([], asked))
    assert findings(after) == []
    assert replace(after, rl_config=before.rl_config) == before
    assert after.rl_config != before.rl_config


def test_a_value_of_the_command_line_wins_over_the_file_and_the_file_over_the_default() -> None:
    config = load_run_config(with_sizes(composed("grpo_qwen25_7b", ["actor_config.lr=3e-5"])))
    assert config.actor_config.lr == 3e-5
    assert config.actor_config.tensor_model_parallel_size == 4
    assert config.actor_config.adam_beta1 == 0.9


@pytest.mark.parametrize(
    ("overrides", "times"), [([], 1), (["actor_config.backend=megatron:d2"], 2)]
)
def test_a_configuration_is_built_once_unless_a_string_sets_its_sizes(
    overrides: list[str], times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []

    def counted(values: dict[str, Any], hint: Hint) -> RunConfig:
        built.append(load_run_config(values, hint))
        return built[-1]

    monkeypatch.setattr(programs_compose, "load_run_config", counted)
    values = composed("grpo_tiny_cpu", overrides)
    assert programs_compose.configured(values) == load_run_config(with_sizes(values))
    assert len(built) == times


def test_each_key_of_the_dataclasses_is_known_to_hydra_with_its_default() -> None:
    values = composed("grpo_tiny_cpu", [])
    for section in ("critic", "environment", "preference", "reward", "sft", "teacher"):
        values |= composed(f"mindrl_{section}_defaults", [])
    # Required keys are left out of what nobody set.
    values["reward_config"]["load"] = values["teacher_config"]["load"] = "model"
    for path, section in sections():
        there = values
        for part in path.split(".")[:-1]:
            there = there[part]
        if isinstance(there, list):
            # Its entries are the user's.
            continue
        assert set(there) == {field.name for field in fields(section)}, path


def test_hydra_refuses_an_override_of_a_key_that_no_dataclass_has() -> None:
    with pytest.raises(ConfigCompositionException, match="n_sampels_per_prompt"):
        composed("grpo_tiny_cpu", ["rl_config.n_sampels_per_prompt=8"])


def test_a_required_value_that_nobody_set_is_left_out_rather_than_passed_as_a_mark() -> None:
    values = composed("mindrl_defaults", [])
    assert "load" not in values["actor_config"]
    assert values["actor_config"]["lr"] == 1e-6


def test_a_file_that_names_the_critics_defaults_lets_each_of_its_keys_be_overridden(
    tmp_path: Path,
) -> None:
    file = tmp_path / "ppo.yaml"
    file.write_text("defaults: [mindrl_defaults, mindrl_critic_defaults]\n", encoding="utf-8")
    register_defaults()
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        values = plain_values(compose("ppo", ["critic_config.min_lr=1e-7"]))
    assert values["critic_config"]["min_lr"] == 1e-7
    assert values["critic_config"]["lr"] == 1e-6
    assert values["reward_config"] is None


def test_every_key_is_documented_by_a_sentence() -> None:
    for path, section in sections():
        for name, field in documented_fields(section).items():
            text = field.description
            assert text, f"{path}{name} has no text under it"
            assert text[0].isupper() or text[0] == "`", text
            assert text.endswith((".", "?")), text


@pytest.mark.parametrize("package", ["mindrl.config", "mindrl.allocation"])
def test_a_light_package_imports_nothing_heavy(package: str) -> None:
    code = (
        "import importlib, pkgutil, sys\n"
        f"package = importlib.import_module({package!r})\n"
        "names = [found.name for found in pkgutil.iter_modules(package.__path__)]\n"
        "assert names\n"
        f"for name in names: importlib.import_module(f'{package}.{{name}}')\n"
        "heavy = {'torch', 'ray', 'vllm', 'megatron', 'transformers'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
