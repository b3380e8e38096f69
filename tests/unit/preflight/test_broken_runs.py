"""Each broken run has one finding, on the right key, and the legal value that it names passes."""

from pathlib import Path
from typing import Any

import pytest
from broken_runs import (
    ACTOR,
    CRITIC,
    DEVICES,
    GENERATE,
    RL,
    RUNS,
    TP,
    WITHOUT_LEGAL,
    Broken,
    Values,
)
from checked_runs import CPU, MakeConfig, model_folder, overrides

from mindrl.config.finding import Finding
from mindrl.config.run import RunConfig
from mindrl.errors import ConfigError
from mindrl.preflight.checks import check, checked_with_legal_values
from mindrl.preflight.memory_plan import Capacity
from mindrl.preflight.run_folders import export_findings, export_places


def found(config: RunConfig, run: Broken) -> list[Finding]:
    mib = config.rl_config.device_memory_mib
    capacity = Capacity(
        device_bytes=None if mib is None else mib << 20,
        host_bytes=None if run.host_mib is None else run.host_mib << 20,
    )
    return checked_with_legal_values(config, CPU, capacity).findings


def test_there_are_60_broken_runs_and_more() -> None:
    assert len(RUNS) >= 60
    # No two are the same.
    assert len({repr(run) for run in RUNS.values()}) == len(RUNS)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
def test_a_broken_run_has_one_finding_and_the_legal_value_that_it_names_passes(
    run: Broken, tmp_path: Path, run_config: MakeConfig
) -> None:
    model = model_folder(tmp_path / "model", **run.model)

    def with_value(value: Any) -> RunConfig:
        return run_config(model, overrides(tmp_path) | run.beside | {run.field: value})

    (finding,) = found(with_value(run.value), run)
    assert (finding.field, finding.value) == (run.field, run.value)
    assert finding.legal[0] == run.legal
    for value in finding.legal:
        assert found(with_value(value), run) == []


@pytest.mark.parametrize(("field", "broken"), WITHOUT_LEGAL.values(), ids=WITHOUT_LEGAL.keys())
def test_where_no_single_value_helps_the_finding_names_the_key_and_none(
    field: str, broken: Values, tmp_path: Path, run_config: MakeConfig
) -> None:
    config = run_config(model_folder(tmp_path / "model"), overrides(tmp_path) | broken)
    (finding,) = checked_with_legal_values(config, CPU, Capacity()).findings
    assert (finding.field, finding.legal) == (field, ())


def test_a_legal_value_pleases_all_rules_and_not_only_its_own(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    """The nearest divisors of 28 heads are 7 and 14, which do not divide 8 devices."""
    run = RUNS["actor tp and attention heads"]
    config = run_config(
        model_folder(tmp_path / "model"), overrides(tmp_path) | run.beside | {run.field: 8}
    )
    (finding,) = found(config, run)
    assert str(finding).endswith("nearest: 7, 14")
    assert finding.legal == (4, 2)


def test_two_findings_are_repaired_each_by_its_own_value(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    both = {DEVICES: 8, f"{ACTOR}.{TP}": 3, f"{RL}.n_samples_per_prompt": 1}
    config = run_config(model_folder(tmp_path / "model"), overrides(tmp_path) | both)
    findings = checked_with_legal_values(config, CPU, Capacity()).findings
    assert [(each.field, each.legal) for each in findings] == [
        (f"{ACTOR}.{TP}", (4, 2)),
        (f"{RL}.n_samples_per_prompt", (2,)),
    ]


def changed(given: Values, field: str, value: Any) -> Values:
    return given | {field: list(value) if isinstance(value, tuple) else value}


PAIRS = [*zip(RUNS, [*RUNS][7:], strict=False)]


@pytest.mark.parametrize("names", PAIRS, ids=map(" and ".join, PAIRS))
def test_of_two_broken_rules_each_value_that_is_named_ends_all_findings_on_its_key(
    names: tuple[str, str], tmp_path: Path, run_config: MakeConfig
) -> None:
    """A value that another finding keeps from helping is not named."""
    runs = [RUNS[name] for name in names]
    model = model_folder(tmp_path / "model", **(runs[0].model | runs[1].model))
    given = overrides(tmp_path) | runs[0].beside | runs[1].beside
    given |= {run.field: run.value for run in runs}
    findings = found(run_config(model, given), runs[0])
    fields = {each.field for each in findings}
    assert fields
    for finding in findings:
        for value in finding.legal:
            try:
                config = run_config(model, changed(given, finding.field, value))
            except ConfigError:
                pytest.fail(f"{finding.field}={value} is out of range")
            left = {each.field for each in found(config, runs[0]) if each.page is None}
            # Memory has a page of its own, and is judged once nothing else is found.
            assert finding.field not in left
            assert left <= fields


def test_a_length_that_the_model_refuses_is_not_named(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    """32 tokens of a prompt and 200 of a response; the model counts to 128."""
    longer = {f"{GENERATE}.sampling_config.max_tokens": 200, f"{GENERATE}.max_model_len": 128}
    config = run_config(model_folder(tmp_path / "model"), overrides(tmp_path) | longer)
    findings = checked_with_legal_values(config, CPU, Capacity()).findings
    assert [(each.field, each.legal) for each in findings] == [
        ("megatron_training.seq_length", ()),
        ("generate_config.max_model_len", ()),
    ]


PPO = {f"{RL}.adv_estimator": "gae", f"{CRITIC}.lr": 1e-5}


@pytest.mark.parametrize(
    ("saves", "field", "trouble"),
    [
        ({f"{ACTOR}.save": "full"}, f"{ACTOR}.save", "is not empty"),
        ({f"{ACTOR}.save": "full/x"}, f"{ACTOR}.save", "is a file"),
        ({f"{CRITIC}.save": "full/x/y", **PPO}, f"{CRITIC}.save", "cannot be made: "),
        # MindSpeed-RL's own PPO file has both at one path.
        ({f"{ACTOR}.save": "a", f"{CRITIC}.save": "b/../a", **PPO}, f"{CRITIC}.save", "replace"),
        ({f"{ACTOR}.save": "a", f"{CRITIC}.save": "a/b", **PPO}, f"{CRITIC}.save", "replace"),
        ({f"{ACTOR}.save": "a/b", f"{CRITIC}.save": "a", **PPO}, f"{CRITIC}.save", "replace"),
        # The actor's best model lies beside its newest.
        ({f"{ACTOR}.save": "a", f"{CRITIC}.save": "a_best", **PPO}, f"{CRITIC}.save", "replace"),
    ],
)
def test_an_export_would_replace_neither_files_nor_the_other_model(
    saves: Values, field: str, trouble: str, tmp_path: Path, run_config: MakeConfig
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("mine")
    placed = {
        key: f"{tmp_path}/{value}" if key.endswith(".save") else value
        for key, value in saves.items()
    }
    config = run_config(model_folder(tmp_path / "model"), overrides(tmp_path) | placed)
    (finding,) = checked_with_legal_values(config, CPU, Capacity()).findings
    assert (finding.field, finding.legal) == (field, (None,))
    assert str(finding).startswith(f"{field}={placed[field]} ")
    assert trouble in str(finding)
    with pytest.raises(ConfigError, match=trouble):
        check(config, CPU)


def test_two_exports_beside_each_other_are_let_through(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    apart = {f"{ACTOR}.save": f"{tmp_path}/a", f"{CRITIC}.save": f"{tmp_path}/ab", **PPO}
    config = run_config(model_folder(tmp_path / "model"), overrides(tmp_path) | apart)
    assert checked_with_legal_values(config, CPU, Capacity()).findings == []


def test_an_export_into_the_run_folder_is_judged_once_that_is_known(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    config = run_config(model_folder(tmp_path / "model"), overrides(tmp_path) | PPO)
    assert [*export_findings(export_places(config))] == []
    folders = export_places(config, tmp_path / "run")
    assert [Path(each).name for each in folders.values()] == ["model", "critic"]
    assert [*export_findings(folders)] == []
    (finding,) = export_findings(export_places(config, tmp_path))
    assert str(finding).startswith(f"{ACTOR}.save={tmp_path}/model is not empty")
