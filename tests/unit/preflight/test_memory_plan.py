"""The predicted memory of a step: bytes by hand, the KV cache, advice that holds, the program."""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from nightly import at_night_but
from user_programs import without_torch

from mindrl.config.role import CriticConfig, RewardConfig
from mindrl.config.run import RunConfig
from mindrl.config.teacher import TeacherConfig
from mindrl.errors import ConfigError, DeviceMemoryError
from mindrl.memory.plan import MemoryPlan
from mindrl.memory.schedule import Region
from mindrl.platform.host_memory import block_sizes
from mindrl.preflight.memory_plan import advice_on, memory_plan
from mindrl.preflight.run_shardings import unordered_shardings
from mindrl.programs.compose import composed_config
from mindrl.programs.entry import start

ROOT = Path(__file__).parents[3]
MODELS = ROOT / "configs" / "models"
QWEN = f"actor_config.load={MODELS / 'Qwen2.5-7B'}"
GIB, MIB = 1 << 30, 1 << 20
ALL_STAY = tuple(f"generate_config.offload_train_{part}=false" for part in ("param", "grad"))


def config_of(*overrides: str) -> RunConfig:
    """The shipped configuration of Qwen2.5-7B: 8 devices, training tp4 dp2, rollout tp2."""
    return composed_config("grpo_qwen25_7b", [QWEN, *overrides])


def plan_of(*overrides: str, gib: float | None = 64) -> MemoryPlan:
    models = unordered_shardings(config_of(*overrides)).ordered
    return memory_plan(models, None if gib is None else int(gib * GIB))


def of_any(memory: MemoryPlan, region: Region) -> int:
    """Return the bytes of a region that are the same on every rank."""
    (found,) = set(memory.regions[region].tolist())
    return int(found)


def test_the_regions_of_7b_are_those_that_its_7_61_billion_weights_make_on_8_devices() -> None:
    memory = plan_of()
    quarter, norms = 7_615_616_512 / 4, 57 * 3584
    # Norms lie on each of the four ranks; Megatron pads each parameter to 64 elements.
    weights = of_any(memory, Region.ACTOR_WEIGHTS)
    assert weights == pytest.approx(2 * (quarter + 0.75 * norms), rel=1e-5)
    assert of_any(memory, Region.ACTOR_GRADIENTS) == 2 * weights
    # Two ranks share 12 bytes a weight.
    optimizer = int(memory.regions[Region.ACTOR_OPTIMIZER].max())
    assert optimizer == pytest.approx(3 * weights, rel=1e-3)
    assert of_any(memory, Region.REFERENCE_WEIGHTS) == 2 * int(quarter + 0.75 * norms)
    assert of_any(memory, Region.ROLLOUT_WEIGHTS) == 7_615_616_512 + norms


def test_with_every_switch_on_the_peak_is_what_the_largest_phase_needs() -> None:
    memory = plan_of("generate_config.kv_cache_mib=4096")
    assert memory.peak_instant.label == "train"
    trained = [Region.ACTOR_WEIGHTS, Region.ACTOR_GRADIENTS, Region.ACTOR_OPTIMIZER]
    assert memory.peak_bytes == memory.need_bytes(memory.peak_rank)
    assert memory.peak_bytes == memory.sum(trained).max()


def test_what_may_not_leave_is_there_in_every_phase_and_what_may_lies_on_the_host() -> None:
    memory = plan_of(*ALL_STAY, "ref_config.offload_param=false")
    stay = {Region.ACTOR_WEIGHTS, Region.ACTOR_GRADIENTS, Region.REFERENCE_WEIGHTS}
    assert all(stay <= instant.resident for instant in memory.course.instants)
    optimizer = memory.regions[Region.ACTOR_OPTIMIZER]
    assert memory.host_bytes.tolist() == (optimizer + memory.host_rounding).tolist()
    nothing = plan_of(
        *ALL_STAY,
        "ref_config.offload_param=false",
        "generate_config.offload_train_optimizer=false",
        "generate_config.kv_cache_mib=1024",
    )
    assert set(nothing.host_bytes.tolist()) == {0}


def test_a_host_of_the_7b_run_takes_141_87_gib_where_one_block_for_each_worker_would_take_256() -> (
    None
):
    everything = plan_of()
    kept = {Region.ACTOR_WEIGHTS, Region.ACTOR_OPTIMIZER, Region.REFERENCE_WEIGHTS}
    assert (
        everything.host_bytes.tolist() == (everything.sum(kept) + everything.host_rounding).tolist()
    )
    # Actor and reference have 7 tensors in each of 28 layers, embedding, norm and head, each in
    # four storages at most, of which each takes up to 512 bytes more.
    assert set(everything.host_rounding.tolist()) == {2 * (28 * 7 + 3) * 4 * 512}
    assert everything.host_bytes_of_node(8) / GIB == pytest.approx(141.87, abs=0.005)
    taken = sum(sum(block_sizes(nbytes)) for nbytes in everything.host_bytes.tolist())
    assert 0 <= taken - everything.host_bytes_of_node(8) < 8 * 512
    alone = [1 << (nbytes - 1).bit_length() for nbytes in everything.host_bytes.tolist()]
    assert sum(alone) == 256 * GIB


def test_a_step_copies_weights_and_optimizer_out_and_those_and_the_reference_back() -> None:
    course = plan_of().course
    out, back = course.copied_out, course.copied_back
    assert set(out) == {Region.ACTOR_WEIGHTS, Region.ACTOR_OPTIMIZER}
    assert sorted(region.value for region in back) == [
        "actor_optimizer",
        "actor_weights",
        "reference_weights",
    ]


def test_the_kv_cache_takes_its_share_less_what_lies_beside_it_during_rollout() -> None:
    moved, staying = plan_of(), plan_of(*ALL_STAY)
    rollout = of_any(moved, Region.ROLLOUT_WEIGHTS)
    assert moved.kv_cache_bytes == (32 * GIB - rollout - moved.graphs) // MIB * MIB
    beside = rollout + int(staying.sum([Region.ACTOR_WEIGHTS, Region.ACTOR_GRADIENTS]).max())
    assert staying.kv_cache_bytes == (32 * GIB - beside - staying.graphs) // MIB * MIB


def test_stages_of_a_rollout_share_the_model_and_have_caches_of_equally_many_blocks() -> None:
    memory = plan_of(
        "generate_config.infer_tensor_parallel_size=1",
        "generate_config.infer_pipeline_parallel_size=8",
        "generate_config.kv_cache_mib=4096",
    )
    layers = [3, 3, 3, 4, 4, 4, 4, 3]
    assert memory.rollout_layers == tuple(layers)
    assert memory.regions[Region.KV_CACHE].tolist() == [1024 * MIB * each for each in layers]
    assert memory.kv_cache_bytes == 4096 * MIB
    # The 152,064 rows of embedding and head have no padding.
    assert int(memory.regions[Region.ROLLOUT_WEIGHTS].sum()) == 2 * 7_615_616_512


def test_where_the_capacity_is_not_known_the_kv_cache_is_as_large_as_it_says_or_not_counted() -> (
    None
):
    assert plan_of("generate_config.kv_cache_mib=300", gib=None).kv_cache_bytes == 300 * MIB
    unknown = plan_of(gib=None)
    assert unknown.kv_cache_bytes is None
    assert unknown.fits


def test_a_kv_cache_without_room_for_one_sequence_is_refused_with_its_figures() -> None:
    # 28 layers, 2 key-value heads of 128, keys and values in 2 bytes: 28,672 bytes a token.
    with pytest.raises(ConfigError) as small:
        plan_of("generate_config.kv_cache_mib=115")
    assert str(small.value) == (
        "generate_config.kv_cache_mib=115: one sequence of "
        "generate_config.max_model_len=4096 tokens, and the engine's spare block, take "
        "115.5 MiB (28,672 bytes per token, 128 tokens per block)"
    )
    assert plan_of("generate_config.kv_cache_mib=116").kv_cache_bytes == 116 * MIB
    with pytest.raises(DeviceMemoryError) as none_left:
        plan_of("generate_config.enforce_eager=true", gib=14.25)
    assert str(none_left.value) == (
        "generate_config.gpu_memory_utilization=0.5 of 14,592.0 MiB is 7,296.0 MiB; "
        "everything else on the device during rollout takes 7,263.0 MiB, which leaves 32 "
        "MiB for the KV cache; one sequence of generate_config.max_model_len=4096 tokens, and the "
        "engine's spare block, take 115.5 MiB (28,672 bytes per token, 128 tokens per block)"
    )


@pytest.mark.parametrize(
    "settings",
    [
        (*ALL_STAY, "generate_config.offload_train_optimizer=false"),
        ("ref_config.offload_param=false", "megatron_training.use_distributed_optimizer=false"),
        ("generate_config.kv_cache_mib=40000",),
    ],
)
@pytest.mark.parametrize("gib", at_night_but([24], [24, None]))
def test_what_an_advice_promises_is_what_its_key_does(
    settings: Sequence[str], gib: float | None
) -> None:
    fixed = "generate_config.kv_cache_mib=20000"
    settings = settings if any("kv_cache" in each for each in settings) else (*settings, fixed)
    config = config_of(*settings)
    memory = plan_of(*settings, gib=gib)
    found = advice_on(memory, unordered_shardings(config).ordered)
    assert found
    for advice in found:
        kept = [each for each in settings if each.split("=")[0] != advice.setting.split("=")[0]]
        changed = plan_of(*kept, advice.setting, gib=gib)
        assert changed.peak_bytes == advice.peak_bytes < memory.peak_bytes
        assert advice.saved_bytes == memory.peak_bytes - advice.peak_bytes


def test_a_smaller_kv_cache_is_advised_that_just_fits_the_device() -> None:
    settings = ("generate_config.kv_cache_mib=40000",)
    config, memory = config_of(*settings), plan_of(*settings, gib=40)
    assert not memory.fits
    (advice,) = advice_on(memory, unordered_shardings(config).ordered)
    assert 40 * GIB - MIB < advice.peak_bytes + memory.graphs <= 40 * GIB


def test_critic_and_reward_model_have_layouts_and_switches_of_their_own() -> None:
    grpo = config_of("generate_config.kv_cache_mib=4096")
    llama = str(MODELS / "Llama-3.2-1B")
    config = replace(
        grpo,
        critic_config=CriticConfig(tensor_model_parallel_size=8, offload_train_grad=False),
        reward_config=RewardConfig(load=llama, tensor_model_parallel_size=1),
    )
    memory = memory_plan(unordered_shardings(config).ordered, None)
    half = memory.regions[Region.ACTOR_WEIGHTS][0] / 2
    # A critic over twice as many ranks; its head and norms are the same on each of them.
    assert memory.regions[Region.CRITIC_WEIGHTS].max() < 1.01 * half
    assert Region.CRITIC_GRADIENTS not in memory.movable
    assert Region.CRITIC_OPTIMIZER in memory.movable
    # A whole model of 1.24 billion weights on every rank.
    assert 2.4e9 < of_any(memory, Region.REWARD_WEIGHTS) < 2.5e9
    labels = [each.label for each in memory.course.instants]
    for phase in ("reward", "critic_forward", "critic_train"):
        assert labels.count(phase) == 1
    gradients_stay = [Region.CRITIC_GRADIENTS in each.resident for each in memory.course.instants]
    assert all(gradients_stay)


def test_a_larger_teacher_takes_turns_on_the_device_in_a_layout_of_its_own() -> None:
    larger = str(MODELS / "Qwen2.5-32B")
    grpo = config_of("generate_config.kv_cache_mib=4096")
    teacher = TeacherConfig(load=larger, tensor_model_parallel_size=8)
    memory = memory_plan(unordered_shardings(replace(grpo, teacher_config=teacher)).ordered, None)
    # 32,763,876,352 weights of 2 bytes; the 129 norms of 5120 are whole on each of the 8 ranks.
    norms = 129 * 5120
    eighth = (32_763_876_352 - norms) / 8 + norms
    assert of_any(memory, Region.TEACHER_WEIGHTS) == pytest.approx(2 * eighth, rel=1e-6)
    assert Region.TEACHER_WEIGHTS in memory.movable
    there = [each.phase.value for each in memory.course.instants if each.move is None]
    assert there.count("teacher") == 1
    with_it = [each for each in memory.course.instants if Region.TEACHER_WEIGHTS in each.resident]
    assert {each.label for each in with_it if each.move is None} == {"teacher"}
    stays = replace(teacher, offload_param=False)
    kept = memory_plan(unordered_shardings(replace(grpo, teacher_config=stays)).ordered, None)
    always = [Region.TEACHER_WEIGHTS in each.resident for each in kept.course.instants]
    assert all(always)
    # The host keeps what leaves the device.
    weights = int(memory.regions[Region.TEACHER_WEIGHTS][0])
    moved = int((memory.host_bytes - kept.host_bytes).max())
    assert moved == pytest.approx(weights, rel=1e-3)


def started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, list[str]]:
    """Run the program in this process; returns its exit code, its output and its errors."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "argv", ["plan.py", "memory", *arguments])
    code = start("plan")
    printed = capsys.readouterr()
    return code, printed.out, printed.err.splitlines()


def test_the_program_needs_no_torch_and_prints_the_plan_as_json() -> None:
    command = ["cli/plan.py", "memory", "--config-name", "grpo_qwen25_7b", QWEN, "--json"]
    ended = without_torch(*command, "--device-memory-gib", "64")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["fits"] is True
    assert found["peak_bytes"] == plan_of().peak_bytes
    assert [moment["label"] for moment in found["moments"]] == [
        "reshard",
        "rollout",
        "reference",
        "train",
    ]
    assert found["moments"][0]["region_bytes"].keys() == {
        "actor_weights",
        "rollout_weights",
        "staging",
    }


def test_what_does_not_fit_ends_with_code_1_and_the_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ("--config-name", "grpo_qwen25_7b", QWEN, "--device-memory-gib")
    settings = ("generate_config.kv_cache_mib=4096", "generate_config.enforce_eager=true")
    code, printed, errors = started(monkeypatch, capsys, *named, "20", *settings)
    assert code == 1
    assert errors == ["error: train needs 21.28 GiB, but the device has 20.00 GiB"]
    assert "20.00 GiB: DOES NOT FIT" in printed
    code, printed, errors = started(monkeypatch, capsys, *named, "14")
    assert code == 1
    assert errors[0].startswith("error: generate_config.gpu_memory_utilization=0.5 of 14,336.0 MiB")
    assert "the remaining device memory; not counted above" in printed


def test_the_command_line_says_what_another_device_would_have(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ("--config-name", "grpo_qwen25_7b", QWEN, "--json")
    code, printed, _ = started(monkeypatch, capsys, *named)
    assert (code, json.loads(printed)["capacity_bytes"]) == (0, 62_400 * MIB)
    code, printed, _ = started(monkeypatch, capsys, *named, "--device-memory-gib", "96")
    assert (code, json.loads(printed)["capacity_bytes"]) == (0, 96 * GIB)


def test_of_a_model_that_is_not_here_the_shipped_sizes_are_taken_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ("--config-name", "grpo_qwen25_7b", "actor_config.load=/no/Qwen2.5-7B")
    code, printed, errors = started(monkeypatch, capsys, *named)
    assert code == 0
    assert errors == [
        ("note: /no/Qwen2.5-7B not found; using the sizes of configs/models/Qwen2.5-7B")
    ]
    code, as_json, errors = started(monkeypatch, capsys, *named, "--json")
    assert json.loads(as_json)["shipped_sizes"] == {"/no/Qwen2.5-7B": "configs/models/Qwen2.5-7B"}
    assert errors == []
    # The shipped folder itself is here, and nothing stands for it.
    _, here, errors = started(monkeypatch, capsys, *named[:2], QWEN)
    assert (here, errors) == (printed, [])


def test_overrides_may_stand_before_and_behind_the_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (QWEN, "--config-name", "grpo_qwen25_7b", "generate_config.kv_cache_mib=4096")
    code, printed, _ = started(monkeypatch, capsys, *arguments, "--json")
    assert code == 0
    assert json.loads(printed)["kv_cache_bytes"] == 4096 * MIB


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("actor_config.tensor_model_parallel_size=3",), "tensor_model_parallel_size=3 must"),
        (("actor_config.lr=-1",), "actor_config.lr=-1 must be greater than 0"),
        (("actor_config.rl=1",), "actor_config.rl is not a configuration key"),
        (("actor_config.lr=[",), "actor_config.lr=[ cannot be read: it must be key=value"),
        (("actor_config.load=nowhere",), "model folder nowhere does not exist"),
        (
            ("--config-name", "none"),
            "has no configuration none; known: distill_tiny_cpu, dpo_tiny_cpu, ",
        ),
        (
            ("generate_config.infer_tensor_parallel_size=8",),
            "generate_config.infer_tensor_parallel_size=8 must divide num_attention_heads=28",
        ),
    ],
)
def test_what_cannot_run_ends_with_code_2(
    arguments: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    named = ("--config-name", "grpo_qwen25_7b", QWEN)
    code, printed, errors = started(monkeypatch, capsys, *named, *arguments)
    assert code == 2
    assert printed == ""
    assert message in "\n".join(errors)


def test_an_option_that_does_not_exist_ends_with_the_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        started(monkeypatch, capsys, "--config-name", "grpo_qwen25_7b", "--gib", "4")
    assert ended.value.code == 2


def test_the_page_of_the_program_shows_what_it_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "how-to" / "plan-a-run.md").read_text("utf-8")
    shown = [line.rstrip() for line in page.splitlines()]
    command = re.search(r"plan\.py memory (--config-name .*) \\\n(.*)", page)
    assert command is not None
    arguments = " ".join(command.groups()).split()
    code, printed, _ = started(monkeypatch, capsys, *arguments, QWEN)
    assert code == 0
    lines = [line.rstrip() for line in printed.splitlines()]
    assert len(lines) > 20
    assert [line for line in lines if line not in shown] == []


def test_the_page_of_the_program_shows_the_activations_of_a_long_sequence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "how-to" / "plan-a-run.md").read_text("utf-8")
    section = page.split("### A sequence of 128k tokens")[1].split("\n## ")[0]
    command = section.split("plan.py memory ")[1].split("\n\n")[0].replace("\\\n", " ").split()
    recomputed = [
        f"actor_config.recompute_{name}"
        for name in ("granularity=full", "method=uniform", "num_layers=1")
    ]
    rows = re.findall(r"\| (\d) \| ([\d.]+) GiB \| ([\d.]+) GiB \|", section)
    assert len(rows) == 3
    for size, *shown in rows:
        of_size = [*command, f"actor_config.context_parallel_size={size}", QWEN]
        for keys, activations in zip(([], recomputed), shown, strict=True):
            code, printed, _ = started(monkeypatch, capsys, *of_size, *keys)
            assert code == 0
            (line,) = re.findall(r"activations, estimated .*", printed)
            assert line.split()[-1] == activations
