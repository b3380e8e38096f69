"""Each patch is still needed; a test that fails here means that its patch can be removed."""

import inspect
import json
import marshal
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from transformers import AutoTokenizer

from mindrl.platform import prefork_client
from mindrl.platform.device import PLATFORMS, configure_megatron

PATCHES = Path(__file__).parents[3] / "mindrl" / "platform" / "patches"


# What it shows changes with a pin alone.
@pytest.fixture(scope="module", params=[pytest.param("upstream", marks=pytest.mark.nightly)])
def upstream(random_model: Callable[[bool], Path]) -> dict[str, Any]:
    """What third-party code does without a patch, seen in a process of its own."""
    environment = PLATFORMS["cpu"].worker_environment(workers=1, one_machine=True)
    ended = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            Path(__file__).with_name("upstream.py"),
            random_model(True),
        ],
        env=os.environ | environment | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def test_megatron_on_cpu_is_needed_for_groups_forward_pass_and_gradients(
    upstream: dict[str, Any],
) -> None:
    errors = upstream["megatron_on_cpu"]
    assert set(errors) == {"process groups", "forward pass", "gradients"}
    for stage, error in errors.items():
        assert error is not None, f"{stage} works without the patch"
        assert "CUDA" in error


def test_megatron_rank_order_is_needed_while_no_order_string_splits_a_dimension_in_two(
    upstream: dict[str, Any],
) -> None:
    # Neighbours: all orders with tp before dp. Ranks two apart, four times: none of the 120.
    assert len(upstream["orders_of_neighbours"]) == 60
    assert upstream["orders_of_split_data"] == []


def test_megatron_without_te_is_needed_while_the_router_asks_for_a_name_that_is_missing(
    upstream: dict[str, Any],
) -> None:
    assert not upstream["router_names_te_general_gemm"]


def test_megatron_without_te_is_needed_while_latent_attention_takes_mocks_for_layers(
    upstream: dict[str, Any],
) -> None:
    assert upstream["latent_attention_has_te"]
    assert not upstream["latent_attention_has_layers_of_te"]


def test_megatron_grouped_gemm_is_needed_while_megatron_finds_no_product_without_a_package(
    upstream: dict[str, Any],
) -> None:
    assert not upstream["grouped_product_is_there"]


def test_megatron_uneven_on_gloo_is_needed_while_gloo_refuses_parts_of_unequal_size(
    upstream: dict[str, Any],
) -> None:
    for error in upstream["uneven_gather"]:
        assert "invalid tensor size" in error


def test_vllm_keeps_process_groups_is_needed_while_an_engine_destroys_them_at_its_end(
    upstream: dict[str, Any],
) -> None:
    assert "cleanup_dist_env_and_memory" in upstream["shutdown_names"]
    assert not upstream["groups_survive_clean_up"]
    assert upstream["patched_groups_survive_clean_up"]


def test_vllm_cpu_shared_memory_is_needed_while_every_job_has_the_same_name(
    upstream: dict[str, Any],
) -> None:
    # Nothing in it tells two jobs of one host apart.
    assert upstream["shared_memory_name"] == "//-tp:0-[0-1]-cpushm"


def test_vllm_cpu_experts_is_needed_while_experts_that_are_elsewhere_add_to_the_answer(
    upstream: dict[str, Any],
) -> None:
    # 32 ones through each matrix of ones: silu(32) * 32 * 32, by weights that add to 1.
    assert upstream["answer_of_experts_that_are_elsewhere"] == pytest.approx(32**3)
    assert upstream["patched_answer_of_experts_that_are_elsewhere"] == 0.0


def test_vllm_cpu_gated_delta_is_needed_while_a_gated_delta_net_refuses_float32(
    upstream: dict[str, Any],
) -> None:
    # What it computes instead: tests/distributed/test_gated_delta.py.
    assert "CPU GDN attention requires BF16" in upstream["gated_delta_net_in_float32"]


def test_vllm_cpu_token_attention_is_needed_while_a_token_has_another_result_in_a_prompt(
    upstream: dict[str, Any],
) -> None:
    found = upstream["attention_by_token"]
    assert found["token in a prompt"] > 0.0
    assert found["sequence in a pack"] == 0.0
    # Sums of float32 in another order.
    assert 0.0 < found["torch's kernel"] < 1e-5
    assert found["gradients"] == 0.0


def test_vllm_cpu_token_attention_cuts_a_batch_into_its_tokens(upstream: dict[str, Any]) -> None:
    assert upstream["requests_by_token"] == {
        "starts": [0, 1, 2, 3, 4],
        "seen": [5, 6, 7, 9],
        "blocks": [5, 5, 5, 6],
    }


def test_vllm_cpu_drafts_is_needed_while_drafted_tokens_have_other_temperatures_than_requests(
    upstream: dict[str, Any],
) -> None:
    # What was in the memory before.
    assert upstream["repeated_for_drafts"]["vllm"] == [7.0] * 3
    assert upstream["repeated_for_drafts"]["ours"] == [0.5, 0.5, 1.0]


def test_vllm_cpu_int8_is_needed_while_a_bfloat16_layer_is_packed_for_outputs_in_float32(
    upstream: dict[str, Any],
) -> None:
    packed = upstream["packed_for_a_bfloat16_layer"]
    assert packed == {"outputs": "torch.float32", "sums": True}
    patched = upstream["patched_for_a_bfloat16_layer"]
    assert patched == {"outputs": "torch.bfloat16", "sums": False}


def test_vllm_cpu_sleep_is_needed_while_a_worker_without_a_model_sleeps_without_an_error(
    upstream: dict[str, Any],
) -> None:
    assert upstream["sleep_of_a_bare_worker"] is None
    assert upstream["wake_up_of_a_bare_worker"] is None


def test_ray_on_loopback_is_needed_while_ray_replaces_the_loopback_address(
    upstream: dict[str, Any],
) -> None:
    assert "resolve_ip_for_localhost" in upstream["init_names"]
    assert upstream["loopback_becomes"] == "192.0.2.7"
    assert upstream["patched_loopback_becomes"] == "127.0.0.1"


def test_ray_forks_workers_is_needed_while_ray_looks_for_the_program_of_a_worker_by_its_name(
    upstream: dict[str, Any],
) -> None:
    assert "SETUP_WORKER_FILENAME" in upstream["node_names"]
    # What it is joined to then counts for nothing.
    program = Path(prefork_client.__file__)
    assert program.is_absolute()
    assert Path("/ray/_private/workers") / program == program


def test_ray_without_services_is_needed_while_ray_starts_them_unasked(
    upstream: dict[str, Any],
) -> None:
    assert {"start_monitor", "start_api_server"} <= {*upstream["head_names"]}
    assert "start_log_monitor" in upstream["ray_names"]


def test_ray_keeps_signals_is_needed_while_ray_sets_a_handler_unasked() -> None:
    from ray._private import worker

    assert "utils.set_sigterm_handler(sigterm_handler)" in inspect.getsource(worker.init)
    program = (
        "import signal; from ray._private import utils;"
        "from mindrl.platform.patches import ray_keeps_signals as patch; patch.install();"
        "utils.set_sigterm_handler(print); print(signal.getsignal(signal.SIGTERM).name)"
    )
    command = [sys.executable, "-c", program]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed == "SIG_DFL\n"


def test_vllm_cpu_kernels_is_needed_while_kernels_are_looked_for_in_all_that_is_imported(
    upstream: dict[str, Any],
) -> None:
    assert upstream["kernel_is_replaced"] == {"vllm.probe": True, "elsewhere": True}
    assert upstream["patched_kernel_is_replaced"] == {"vllm.probe": True, "elsewhere": False}


@pytest.mark.nightly
def test_torchvision_on_cpu_is_needed_while_an_import_gives_shapes_to_operators() -> None:
    if version("torchvision").partition("+")[2] == version("torch").partition("+")[2]:
        pytest.skip("this torchvision is built for this torch")
    # Without what scripts/install.sh writes, which imports mindrl in every process.
    program = "import mindrl, sys; sys.meta_path.pop(0); import torchvision"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "operator torchvision::nms does not exist" in ended.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("patched", [False, True])
def test_transformers_without_torch_is_needed_while_a_tokenizer_imports_torch(
    patched: bool, tokenizer_folder: Path
) -> None:
    """The tokens are the same, and torch itself can be imported afterwards."""
    program = (
        "import sys\n"
        "from mindrl.platform.patches import transformers_without_torch\n"
        f"if {patched}: transformers_without_torch.install()\n"
        "from transformers import AutoTokenizer\n"
        f"tokenizer = AutoTokenizer.from_pretrained({str(tokenizer_folder)!r})\n"
        "print('torch' in sys.modules, tokenizer('12+34=46')['input_ids'])\n"
        "import torch\n"
        "print(torch.ones(2).sum().item())"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    ids = AutoTokenizer.from_pretrained(tokenizer_folder)("12+34=46")["input_ids"]
    assert ended.stdout.splitlines() == [f"{not patched} {ids}", "2.0"]


def test_megatron_on_cpu_keeps_what_it_compiles_for_as_long_as_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mindrl.platform.patches.megatron_on_cpu import _Loader

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "part.py"

    def device_of(text: str) -> object:
        source.write_text(text, encoding="utf-8")
        found: dict[str, object] = {}
        exec(_Loader("megatron.core.part", str(source)).get_code("megatron.core.part"), found)
        return found["device"]

    assert device_of("device = 'cuda'") == device_of("device = 'cuda'") == "cpu"
    (kept,) = (tmp_path / "cache/mindrl/megatron").iterdir()
    # What is kept is what is run; what is broken is made anew.
    kept.write_bytes(marshal.dumps(compile("device = 'kept'", str(source), "exec")))
    assert device_of("device = 'cuda'") == "kept"
    kept.write_bytes(b"no code")
    assert device_of("device = 'cuda'") == "cpu"
    assert device_of("device = 'cuda:0', 1") == ("cpu", 1)
    assert len([*kept.parent.iterdir()]) == 2


def test_the_npu_patch_imports_torch_npu_and_then_mindspeed_and_nothing_here_installs_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from mindrl.platform.patches import npu_megatron

    imported: list[tuple[str, int]] = []
    arguments = sys.argv[:]
    monkeypatch.setattr(
        npu_megatron, "import_module", lambda name: imported.append((name, len(sys.argv)))
    )
    npu_megatron.install()
    # MindSpeed reads sys.argv while it is imported, and must not see this process's arguments.
    assert imported == [("torch_npu", len(arguments)), ("mindspeed.megatron_adaptor", 1)]
    assert sys.argv == arguments


def make_dummies(*_: object) -> None:
    """Do what MindSpeed's `create_dummy` does for a function of flash_attn."""
    for name in ("flash_attn", "flash_attn.flash_attn_interface"):
        module = sys.modules.setdefault(name, ModuleType(name))
        module.__file__, module.__spec__ = "mindspeed.dummy_module.py", ModuleSpec(name, None)


def test_npu_without_dummy_flash_attn_leaves_no_such_module_neither_before_nor_after_the_layout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from mindrl.platform.patches import npu_megatron, npu_without_dummy_flash_attn

    patches = PLATFORMS["npu"].megatron_patches
    assert patches.index("npu_without_dummy_flash_attn") == patches.index("npu_megatron") + 1
    assert find_spec("flash_attn") is None, "this test needs an environment without it"
    make_dummies()
    assert find_spec("flash_attn") is not None
    npu_without_dummy_flash_attn.install()
    assert find_spec("flash_attn") is None
    # MindSpeed makes its dummies again with every layout that it is told.
    monkeypatch.setattr(npu_megatron, "repatch", make_dummies)
    configure_megatron(PLATFORMS["npu"], {})
    assert [name for name in sys.modules if name.startswith("flash_attn")] == []


def test_npu_without_dummy_flash_attn_keeps_an_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mindrl.platform.patches import npu_without_dummy_flash_attn

    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    try:
        installed = import_module("flash_attn")
        npu_without_dummy_flash_attn.install()
        assert import_module("flash_attn") is installed
    finally:
        del sys.modules["flash_attn"]


def test_the_layout_goes_to_mindspeed_on_an_npu_and_to_nobody_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from mindrl.platform.patches import npu_megatron

    told: list[object] = []
    monkeypatch.setattr(npu_megatron, "repatch", told.append)
    settings = {"tensor_model_parallel_size": 4, "sequence_parallel": True}
    configure_megatron(PLATFORMS["cpu"], settings)
    assert told == []
    configure_megatron(PLATFORMS["npu"], settings)
    assert told == [settings]


def test_mindspeed_is_told_what_its_grouped_experts_ask_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from mindrl.platform.patches import npu_megatron

    told: list[object] = []
    adaptor = SimpleNamespace(repatch=told.append)
    monkeypatch.setattr(npu_megatron, "import_module", {"mindspeed.megatron_adaptor": adaptor}.get)
    npu_megatron.repatch({"moe_grouped_gemm": True})
    assert told == [{"moe_grouped_gemm": True, "fp8": None}]


def test_npu_grouped_experts_are_told_that_there_is_no_product_in_8_bits() -> None:
    from mindrl.platform.patches import npu_grouped_experts

    assert npu_grouped_experts.MODULE not in sys.modules
    try:
        npu_grouped_experts.install()
        asked = import_module(npu_grouped_experts.MODULE)
        npu_grouped_experts.install()
        assert import_module(npu_grouped_experts.MODULE) is asked
        assert asked.get_gmm_quant_func() is None
    finally:
        del sys.modules[npu_grouped_experts.MODULE]


def test_npu_graphs_prepares_each_engine_that_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.config import CUDAGraphMode

    from mindrl.platform.patches import npu_graphs

    runner: Any = type("NPUModelRunner", (SimpleNamespace,), {})
    both = SimpleNamespace(NPUModelRunner=runner, CUDAGraphMode=CUDAGraphMode)
    monkeypatch.setattr(npu_graphs, "import_module", lambda _: both)
    npu_graphs.install()
    for mode, eager in (("FULL", False), ("FULL", True), ("NONE", False)):
        compilation = SimpleNamespace(cudagraph_mode=CUDAGraphMode[mode])
        settings = SimpleNamespace(enforce_eager=eager)
        engine = runner(compilation_config=compilation, model_config=settings)
        assert engine._use_aclgraph() is ((mode, eager) == ("FULL", False))


def test_every_patch_is_named_by_a_test_of_this_file_and_says_upstream_range_and_reason() -> None:
    patches = {path.stem: path.read_text("utf-8") for path in PATCHES.glob("[!_]*.py")}
    tests = [name for name in globals() if name.startswith("test_")]
    assert len(patches) >= 6
    for name, text in patches.items():
        words = name.replace("npu_megatron", "the_npu_patch")
        assert any(test.startswith(f"test_{words}") for test in tests), f"{name} has no test"
        assert "Upstream: " in text, name
        assert "Reason: " in text, name


def test_each_platform_names_patches_that_exist() -> None:
    every = PLATFORMS.values()
    named = {name for each in every for name in (*each.megatron_patches, *each.patches)}
    assert named <= {path.stem for path in PATCHES.glob("[!_]*.py")}
