"""Runs whose engine cannot verify drafts are refused with what they need."""

import json
from pathlib import Path
from typing import Any

import pytest
from checked_runs import MakeConfig, model_folder, overrides

from mindrl.config.generate import GenerateConfig, SpeculativeConfig
from mindrl.platform.device import PLATFORMS
from mindrl.preflight.draft_checks import draft_findings
from mindrl.rollout.vllm.options import command_of, rollout_options

SECTION = "generate_config.speculative_config"
METHOD = f"{SECTION}.method"


@pytest.mark.parametrize(
    ("changes", "field", "value", "legal"),
    [
        ({f"{SECTION}.prompt_lookup_min": 5}, f"{SECTION}.prompt_lookup_min", 5, 4),
        ({"generate_config.batch_invariant": True}, METHOD, "ngram", None),
        (
            {"generate_config.infer_pipeline_parallel_size": 2},
            "generate_config.infer_pipeline_parallel_size",
            2,
            1,
        ),
        (
            {"generate_config.sampling_config.min_p": 0.1},
            "generate_config.sampling_config.min_p",
            0.1,
            0,
        ),
        (
            {"data_config.eval_sets": [{"name": "a", "data_path": "a.jsonl", "min_p": 0.2}]},
            "data_config.eval_sets.0.min_p",
            0.2,
            0,
        ),
    ],
)
def test_what_an_engine_cannot_verify_is_named_with_its_remedy(
    changes: dict[str, Any],
    field: str,
    value: object,
    legal: object,
    tmp_path: Path,
    run_config: MakeConfig,
) -> None:
    model = model_folder(tmp_path / "model")
    config = run_config(model, overrides(tmp_path) | {METHOD: "ngram"} | changes)
    (found,) = draft_findings(config)
    assert (found.field, found.legal) == (field, (legal,))
    assert str(found).startswith(f"{field}={value}")


def test_nothing_is_drafted_unless_it_is_configured(tmp_path: Path, run_config: MakeConfig) -> None:
    config = run_config(model_folder(tmp_path / "model"), overrides(tmp_path))
    assert [*draft_findings(config)] == []
    plain = rollout_options("folder", config.generate_config, PLATFORMS["cpu"], 1)
    assert plain["speculative_config"] is None


def test_a_server_gets_the_keys_in_the_words_of_vllm() -> None:
    generate = GenerateConfig(
        speculative_config=SpeculativeConfig(method="ngram", num_speculative_tokens=5)
    )
    options = rollout_options("folder", generate, PLATFORMS["cpu"], 1)
    command = command_of({"speculative_config": options["speculative_config"]})
    flag, values = command[-2:]
    assert flag == "--speculative-config"
    assert json.loads(values) == {
        "method": "ngram",
        "num_speculative_tokens": 5,
        "prompt_lookup_max": 4,
        "prompt_lookup_min": 2,
    }
