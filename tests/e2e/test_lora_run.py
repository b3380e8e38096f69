"""GRPO through adapters as a whole: it learns, and goes on to the same bits when it is killed."""

import json
from pathlib import Path

import pytest
from program import Program, kill_at_once, start_program

from mindrl.checkpoint.commits import checksum_of
from mindrl.observability.metrics import computed

# Three runs. Of every change are tests/distributed/test_adapters.py and test_adapter_workers.py.
pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(1200)]

ASKED = (
    "megatron_training.train_iters=10",
    "megatron_training.save_interval=4",
    "actor_config.lora.r=16",
    "actor_config.lora.alpha=32",
    "actor_config.lr=5e-3",
    "rl_config.init_kl_coef=0.001",
)


def learned(run: Program) -> list[dict[str, float]]:
    return [computed(step) for step in run.steps()]


@pytest.mark.parametrize(
    "engine",
    [
        ("actor_config.lora.dropout=0.02",),
        ("actor_config.backend=archon:t2",),
        ("actor_config.backend=fsdp:d2",),
    ],
    ids=["megatron", "archon", "fsdp"],
)
def test_a_run_through_adapters_learns_and_goes_on_when_it_is_killed(
    engine: tuple[str, ...], tiny_model: Path, tmp_path: Path
) -> None:
    asked = [f"actor_config.load={tiny_model}", *ASKED, *engine]
    straight = start_program(tmp_path / "straight", asked)
    assert straight.process.wait(timeout=600) == 0, straight.text()
    summary = straight.summary()
    assert summary["accuracy_after"] > summary["accuracy_before"] + 0.3
    assert all(step["logprob_gap/mean"] < 1e-6 for step in straight.steps())
    config = json.loads((straight.folder / "model/adapter/adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (16, 32)

    killed = start_program(tmp_path / "killed", asked)
    killed.wait_for_line("step  6/10")
    kill_at_once(killed.process)
    goes_on = start_program(killed.folder, ["--resume", str(killed.folder)])
    assert goes_on.process.wait(timeout=600) == 0, goes_on.text()
    assert "continues after step 4" in goes_on.text()
    assert learned(goes_on) == learned(straight)
    for name in ("model.safetensors", "adapter/adapter_model.safetensors"):
        files = [run.folder / "model" / name for run in (goes_on, straight)]
        assert checksum_of(files[0]) == checksum_of(files[1])
