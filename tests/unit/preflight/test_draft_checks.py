"""Runs whose engine cannot verify drafts are refused with what they need."""

import json
from pathlib import Path
from typing import Any

import pytest
from checked_runs import (
    CPU,
    DEVICES,
    ROLLOUT_EP,
    ROLLOUT_TP,
    MakeConfig,
    model_folder,
    overrides,
    refused,
)
from test_teacher_checks import WORDS, with_tokenizer

from mindrl.config.generate import GenerateConfig, SpeculativeConfig
from mindrl.platform.device import PLATFORMS
from mindrl.preflight.checks import check
from mindrl.preflight.draft_checks import draft_file_findings, draft_findings
from mindrl.preflight.machine_checks import attention_findings
from mindrl.preflight.run_shardings import RunShardings
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


def with_model(folder: Path, tokens: dict[str, int] = WORDS, **sizes: Any) -> Path:
    return with_tokenizer(model_folder(folder, **sizes), tokens)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {f"{SECTION}.model": None},
            f"{SECTION}.model is needed with {METHOD}=draft_model: name a model's folder",
        ),
        (
            {METHOD: "ngram", f"{SECTION}.model": "small"},
            f"{SECTION}.model=small has no effect without {METHOD}=draft_model",
        ),
        (
            {"generate_config.quantization": "int8", f"{SECTION}.model": "small"},
            f"generate_config.quantization=int8 must be null with {METHOD}=draft_model",
        ),
    ],
)
def test_a_model_that_drafts_is_named_and_stands_alone(
    changes: dict[str, Any], text: str, tmp_path: Path, run_config: MakeConfig
) -> None:
    model = model_folder(tmp_path / "model")
    config = run_config(model, overrides(tmp_path) | {METHOD: "draft_model"} | changes)
    (found,) = draft_findings(config)
    assert str(found).startswith(text)


def test_a_smaller_model_of_the_policys_family_drafts(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    policy = with_model(tmp_path / "policy", num_hidden_layers=2)
    small = with_model(tmp_path / "small", hidden_size=56)
    given = {METHOD: "draft_model", f"{SECTION}.model": str(small)}
    plan = check(run_config(policy, overrides(tmp_path) | given), CPU)
    assert plan.draft is not None
    assert plan.draft.num_hidden_layers == 1
    # Keys and values of two layers, and of one that is half as wide.
    alone = check(run_config(policy, overrides(tmp_path)), CPU)
    wide, narrow = alone.models["actor"], plan.draft
    more = 2 * narrow.num_key_value_heads * narrow.head_dim * 4
    assert plan.cache_sizes.per_token == alone.cache_sizes.per_token + more
    assert wide.num_hidden_layers == 2
    both, one = (RunShardings(plan=each).rollout_bytes for each in (plan, alone))
    its_own = RunShardings(plan=check(run_config(small, overrides(tmp_path)), CPU)).rollout_bytes
    assert (both - one).tolist() == its_own.tolist()


def test_a_model_that_drafts_other_tokens_is_refused(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    policy, key = with_model(tmp_path / "policy"), f"{SECTION}.model"
    large = with_model(tmp_path / "large", vocab_size=128)
    given = overrides(tmp_path) | {METHOD: "draft_model"}
    (found,) = refused(run_config(policy, given | {key: str(large)}))
    assert found == f"{key}={large} needs vocab_size=96, as the policy; found 128"
    other = with_model(tmp_path / "other", tokens={"a": 1, "b": 0})
    (read,) = draft_file_findings(run_config(policy, given | {key: str(other)}))
    assert str(read) == (
        f"{key}={other} needs the tokenizer in {policy}: 'a' is token 0 of the policy, and 1 of "
        "the draft model"
    )


def test_a_model_that_drafts_with_a_head_size_without_a_kernel_is_named(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    policy = with_model(tmp_path / "policy")
    small = with_model(tmp_path / "small", head_dim=20)
    given = {METHOD: "draft_model", f"{SECTION}.model": str(small)}
    config = run_config(policy, overrides(tmp_path) | given)
    models = RunShardings(plan=check(config, CPU))
    found = [each.field for each in attention_findings(models, PLATFORMS["cpu"])]
    assert f"{SECTION}.model" in found


def test_a_missing_model_that_drafts_is_named(tmp_path: Path, run_config: MakeConfig) -> None:
    policy = with_model(tmp_path / "policy")
    given = {METHOD: "draft_model", f"{SECTION}.model": "nowhere/small"}
    (found,) = refused(run_config(policy, overrides(tmp_path) | given))
    assert found.startswith(f"{SECTION}.model: model folder nowhere/small does not exist")


def test_a_model_that_does_not_draft_is_named_and_not_read(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    policy = with_model(tmp_path / "policy")
    given = {f"{SECTION}.model": "nowhere/small"}
    (found,) = refused(run_config(policy, overrides(tmp_path) | given))
    assert found.startswith(f"{SECTION}.model=nowhere/small has no effect without {METHOD}=draft_m")


def test_illegal_sizes_of_the_rollout_are_named_before_the_draft_is_cut_by_them(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    policy, small = with_model(tmp_path / "policy"), with_model(tmp_path / "small")
    sizes = {DEVICES: 4, ROLLOUT_TP: 4, ROLLOUT_EP: 2}
    given = {METHOD: "draft_model", f"{SECTION}.model": str(small)} | sizes
    (found,) = refused(run_config(policy, overrides(tmp_path) | given))
    assert found.startswith(f"{ROLLOUT_EP}=2 must be 1 or equal to {ROLLOUT_TP}=4")


def test_a_model_that_drafts_is_cut_as_the_policy_is() -> None:
    section = SpeculativeConfig(method="draft_model", model="small", num_speculative_tokens=2)
    generate = GenerateConfig(speculative_config=section, infer_tensor_parallel_size=2)
    options = rollout_options("folder", generate, PLATFORMS["cpu"], 1)
    assert options["speculative_config"] == {
        "method": "draft_model",
        "model": "small",
        "num_speculative_tokens": 2,
        "draft_tensor_parallel_size": 2,
    }


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
