"""`mindrl schema`: what a file may contain, as editors check it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator
from omegaconf import OmegaConf

from mindrl.config.load import sections
from mindrl.config.run import RunConfig
from mindrl.config.section import documented_fields
from mindrl.programs.entry import start
from mindrl.programs.schema import REFERENCE, configuration_schema

CONFIGS = Path(__file__).parents[3] / "configs"
SCHEMA = configuration_schema()
CHECK = Draft7Validator(SCHEMA)
LEGAL: tuple[dict[str, Any], ...] = (
    {"actor_config": {"lr": "${critic_config.lr}"}},
    {"actor_config": {"tensor_model_parallel_size": None}},
    {"critic_config": None},
    {"rl_config": {"adv_estimator": "my/advantages.py:mine"}},
    {"rl_config": {"verifier_function": ["math_verify", "http://127.0.0.1:9000"]}},
    {"megatron_training": {"data_path": ["a.jsonl", "b.jsonl"]}},
)
WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"rl_config": {"n_sampels_per_prompt": 8}}, "'n_sampels_per_prompt' was unexpected"),
    ({"rl_confg": {}}, "'rl_confg' was unexpected"),
    ({"actor_config": {"lr": "fast"}}, "'fast' is not valid"),
    ({"actor_config": {"lr": 11}}, "11 is not valid"),
    ({"rl_config": {"blocking": "yes"}}, "'yes' is not valid"),
    ({"rl_config": {"step_order": "in_turn"}}, "'in_turn' is not valid"),
    ({"rl_config": {"adv_estimator": "grop_norm"}}, "'grop_norm' is not valid"),
    ({"rl_config": {"actor_resource": 2}}, "2 is not of type 'object'"),
    ({"data_config": {"train_sets": [{"name": "a"}]}}, "[{'name': 'a'}] is not valid"),
)


def messages(values: object) -> list[str]:
    return [error.message for error in CHECK.iter_errors(values)]


def test_every_shipped_file_is_valid_as_it_is_written() -> None:
    """Before Hydra adds what its defaults list names."""
    files = sorted(CONFIGS.glob("*.yaml")) + sorted((CONFIGS / "recipe").glob("*.yaml"))
    assert len(files) >= 30
    found = {
        file.name: messages(OmegaConf.to_container(OmegaConf.load(file), resolve=False))
        for file in files
    }
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_misspelt_keys_and_wrong_values_are_refused_and_legal_ones_are_not() -> None:
    assert [values for values in LEGAL if messages(values)] == []
    refused = [(messages(values), text) for values, text in WRONG]
    assert [pair for pair in refused if not any(pair[1] in each for each in pair[0])] == []


def test_every_key_has_its_documented_meaning_without_links() -> None:
    defined = {**SCHEMA["$defs"], "RunConfig": SCHEMA}
    assert {*defined} == {each.__name__ for each in sections(RunConfig).values()} | {REFERENCE}
    texts = {
        (section.__name__, name): defined[section.__name__]["properties"][name]["description"]
        for section in sections(RunConfig).values()
        for name in documented_fields(section)
    }
    assert len(texts) >= 250
    assert [place for place, text in texts.items() if not text or "](" in text] == []
    assert texts["CriticConfig", "lr"] == "Peak learning rate."
    assert texts["ActorConfig", "save"].startswith("Folder for the exported model. null writes")


def test_the_program_prints_the_schema(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["mindrl"])
    assert start("schema") == 0
    printed = json.loads(capsys.readouterr().out)
    Draft7Validator.check_schema(printed)
    assert printed == SCHEMA
