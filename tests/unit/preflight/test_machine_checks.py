"""What a run asks of this machine is a finding, unless it is for another one."""

import json
import shutil
from pathlib import Path

import pytest
from checked_runs import DEVICES, MakeConfig, model_folder, overrides

from mindrl.errors import ConfigError
from mindrl.observability.units import MIB
from mindrl.platform.device import PLATFORMS
from mindrl.platform.host_memory import memory_bound
from mindrl.preflight import machine_checks
from mindrl.preflight.checks import check, checked_with_legal_values
from mindrl.preflight.machine_checks import host_findings
from mindrl.preflight.memory_plan import Capacity, memory_plan
from mindrl.preflight.run_shardings import RunShardings
from mindrl.rollout.vllm.architectures import installed_head_sizes

CPU = PLATFORMS["cpu"]
WIDE = {"hidden_size": 896, "num_attention_heads": 28}
KV = "generate_config.kv_cache_mib"


@pytest.fixture
def model(tmp_path: Path, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a model with heads of 32 and a tokenizer."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    folder = model_folder(tmp_path / "model", **WIDE)
    for file in tokenizer_folder.iterdir():
        shutil.copy(file, folder / file.name)
    return folder


def refused_here(config: object, kind: str = "cpu") -> str:
    with pytest.raises(ConfigError) as caught:
        check(config, PLATFORMS[kind], here=True)  # type: ignore[arg-type, index]
    return str(caught.value)


def test_a_run_that_this_machine_can_start_is_let_through(
    model: Path, tmp_path: Path, run_config: MakeConfig
) -> None:
    check(run_config(model, overrides(tmp_path)), CPU, here=True)


def test_devices_that_this_machine_has_not_are_a_finding(
    model: Path, tmp_path: Path, run_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINDRL_DEVICE_FOLDER", str(tmp_path))
    npu = run_config(model, overrides(tmp_path, rl_config__device="npu"))
    assert refused_here(npu, "npu").startswith("rl_config.device=npu: this machine has no such")
    batch = {"megatron_training.global_batch_size": 4096, "rl_config.mini_batch_size": 4096}
    many = run_config(model, overrides(tmp_path) | {DEVICES: 4096} | batch)
    assert f"{DEVICES}=4096: the run needs 4096 devices, and " in refused_here(many)
    # A cluster that is joined has devices of its own.
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    check(many, CPU, here=True)


def test_an_environment_that_no_worker_accepts_is_a_finding_before_a_run(
    model: Path, tmp_path: Path, run_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINDRL_DEVICE_FOLDER", str(tmp_path))
    for number in (4, 5):
        (tmp_path / f"davinci{number}").touch()
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "4, 5")
    two = run_config(model, overrides(tmp_path, rl_config__device="npu") | {DEVICES: 2})
    assert "ASCEND_RT_VISIBLE_DEVICES=4, 5: CANN ends this list" in refused_here(two, "npu")
    # The nodes of a joined cluster have environments of their own.
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    check(two, PLATFORMS["npu"], here=True)


APART = {
    "rl_config.device": "npu",
    "rl_config.use_integrated_worker": False,
    "megatron_training.global_batch_size": 12,
    "rl_config.mini_batch_size": 12,
}
ROLLOUT_DEVICES = "rl_config.rollout_resource.num_npus"


@pytest.mark.parametrize(
    ("actor", "rollout", "legal"),
    [
        # The rollout's device is not the actor's to take.
        (3, 1, (2,)),
        (1, 3, ()),
        # Without this number two devices of the rollout would be suggested.
        (2, None, ()),
    ],
)
def test_a_suggested_number_of_devices_fits_this_machine(
    actor: int,
    rollout: int | None,
    legal: tuple[int, ...],
    tmp_path: Path,
    run_config: MakeConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("MINDRL_DEVICE_FOLDER", str(tmp_path))
    for number in range(3):
        (tmp_path / f"davinci{number}").touch()
    model = model_folder(tmp_path / "model", **WIDE)
    counts = {DEVICES: actor, ROLLOUT_DEVICES: rollout}
    config = run_config(model, overrides(tmp_path) | APART | counts)
    checked = checked_with_legal_values(config, PLATFORMS["npu"], Capacity(), here=True)
    (found,) = [each for each in checked.findings if each.field in (DEVICES, ROLLOUT_DEVICES)]
    assert found.legal == legal
    assert ("use 2 or fewer, or " in str(found)) == bool(legal)


def test_a_cache_beyond_the_memory_of_this_machine_is_a_finding(
    model: Path, tmp_path: Path, run_config: MakeConfig
) -> None:
    mib = memory_bound() >> 20
    large = run_config(model, overrides(tmp_path) | {KV: mib})
    assert refused_here(large).startswith(f"{KV}={mib}: the workers of this machine need ")
    check(run_config(model, overrides(tmp_path) | {KV: mib // 4}), CPU, here=True)


def test_a_smaller_cache_is_suggested_only_if_the_workers_then_fit(
    model: Path, tmp_path: Path, run_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def models(mib: int) -> RunShardings:
        changes = overrides(tmp_path) | {DEVICES: 2, KV: mib}
        return RunShardings(plan=check(run_config(model, changes), CPU))

    for mib, excess, field, legal in (
        # Each of two workers gives up a whole MiB.
        (512, 1, KV, (511,)),
        (512, 3 * MIB, KV, (510,)),
        # An update needs more than the rollout with this cache.
        (4, 3 * MIB, "actor_config.load", ()),
    ):
        first = models(mib)
        bound = memory_plan(first, None, first.most_staging).peak_bytes * 2 - excess
        monkeypatch.setattr(machine_checks, "memory_bound", lambda bound=bound: bound)
        (found,) = host_findings(first, CPU)
        assert (found.field, found.legal) == (field, legal)
        assert not [each for fix in legal for each in host_findings(models(fix), CPU)]


def test_a_model_folder_without_a_tokenizer_says_that_and_where(
    model: Path, tmp_path: Path, run_config: MakeConfig
) -> None:
    (model / "tokenizer.json").unlink()
    text = refused_here(run_config(model, overrides(tmp_path)))
    assert text.startswith(f"actor_config.load={model}: the folder has no tokenizer (")


def test_a_head_size_without_a_kernel_of_vllm_on_cpu_is_a_finding(
    model: Path, tmp_path: Path, run_config: MakeConfig
) -> None:
    values = json.loads((model / "config.json").read_text())
    model_folder(model, **{**values, "hidden_size": 336})
    text = refused_here(run_config(model, overrides(tmp_path)))
    assert text.startswith("actor_config.load: head_dim=12 must be one of 32, 64, ")


@pytest.mark.nightly
def test_the_head_sizes_are_those_of_the_installed_vllm() -> None:
    attention = pytest.importorskip("vllm.v1.attention.backends.cpu_attn")
    sizes = attention.CPUAttentionBackend.get_supported_head_sizes()
    assert installed_head_sizes() == tuple(sizes)


@pytest.mark.parametrize("path", ["https://a.b/rows.jsonl", "hf://datasets/a/b", "s3://a/b.csv"])
def test_an_address_is_no_data(
    path: str, model: Path, tmp_path: Path, run_config: MakeConfig
) -> None:
    field = "megatron_training.data_path"
    config = run_config(model, overrides(tmp_path) | {field: path})
    assert refused_here(config).startswith(f"{field}={path} is an address; use a path on this")


def test_a_device_is_no_data(model: Path, tmp_path: Path, run_config: MakeConfig) -> None:
    field = "megatron_training.data_path"
    config = run_config(model, overrides(tmp_path) | {field: "/dev/null"})
    assert refused_here(config) == (
        f"{field}=/dev/null is a device or a pipe; must be a file or a folder"
    )
