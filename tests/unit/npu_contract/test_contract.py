"""The NPU contract names everything that mindrl's NPU code names, and nothing else."""

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from npu_contract.contract import ENTRIES
from npu_contract.entry import Kind

from mindrl.config.generate import GenerateConfig, SamplingConfig
from mindrl.platform.device import PLATFORMS
from mindrl.platform.npu_versions import PINS, Origin
from mindrl.rollout.engine import Sampling
from mindrl.rollout.parameters import vllm_parameters
from mindrl.rollout.vllm.options import rollout_options

ROOT = Path(__file__).parents[3]
VENDORS = ("torch_npu", "mindspeed", "vllm_ascend")
DEVICE = "torch_npu.npu"
OF_NO_VENDOR = {"OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", "HF_HUB_OFFLINE"}
OUR_VARIABLES = {"ASCEND_INSTALL_DIR", "ASCEND_INDEX"}
ENGINE = ("mindrl/rollout/vllm/engine.py", "mindrl/rollout/vllm/shards.py")
OF_THE_CPU_WORKER = {"resident_bytes"}
"""Asked of mindrl's own worker, which stands for the engine's on a CPU."""


def read(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


def python_files() -> list[str]:
    found = (
        path for folder in ("mindrl", "cli", "scripts") for path in ROOT.glob(f"{folder}/**/*.py")
    )
    files = [path.relative_to(ROOT).as_posix() for path in found]
    assert len(files) > 150
    return files


def names_of(*kinds: Kind) -> set[str]:
    return {entry.name for entry in ENTRIES if entry.kind in kinds}


def arguments_of(name: str) -> list[str]:
    return next(
        list(entry.arguments) for entry in ENTRIES if entry.name == name and entry.arguments
    )


def is_vendor(name: str) -> bool:
    return name.split(".", maxsplit=1)[0] in VENDORS


def spelled(node: ast.AST, values: dict[str, str]) -> str:
    """Spell an expression of names, attributes and calls; known parts as what they are."""
    if isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in values:
        return values[ast.unparse(node)]
    match node:
        case ast.Call(func=ast.Name(id="import_module"), args=[ast.Constant(value=str(name))]):
            return name
        case ast.Call(func=ast.Attribute(attr="get_device_module")):
            return DEVICE
        case ast.Call(func=function):
            return spelled(function, values)
        case ast.Attribute(value=owner, attr=attribute) if holder := spelled(owner, values):
            return f"{holder}.{attribute}"
    return "torch" if ast.unparse(node) == "torch" else ""


def vendor_names(source: str) -> set[str]:
    """Find the names of vendors' packages in a source, through variables that hold them."""
    tree = ast.parse(source)
    values: dict[str, str] = {}
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            held = spelled(node.value, values)
            if is_vendor(held):
                values[ast.unparse(node.targets[0])] = held
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute | ast.Call):
            found.add(spelled(node, values).replace("torch.npu.", f"{DEVICE}."))
    return {name for name in found if is_vendor(name)} - {DEVICE}


def engine_imports() -> Iterator[str]:
    """Yield what is imported of vLLM where an NPU worker imports it."""
    npu = PLATFORMS["npu"]
    names = (*npu.megatron_patches, *npu.patches)
    patches = [f"mindrl/platform/patches/{name}.py" for name in names]
    for file in [*patches, *(file for file in python_files() if "mindrl/rollout/" in file)]:
        for node in ast.walk(ast.parse(read(file))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def engine_attributes(source: str) -> set[str]:
    """Find the attributes that are reached through the engine or its worker."""
    roots = re.compile(r"(?:self\.llm|self\._worker|self\.worker|worker)\.((?:\w+\.?)+)")
    code = "\n".join(
        ast.unparse(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)
    )
    return {part for chain in roots.findall(code) for part in chain.split(".") if part}


def calls(source: str, function: str) -> list[ast.Call]:
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return [node for node in nodes if ast.unparse(node.func) == function]


def keywords(call: ast.Call) -> set[str]:
    return {keyword.arg for keyword in call.keywords if keyword.arg}


def mapping_keys(call: ast.Call) -> set[str]:
    tables = [argument for argument in call.args if isinstance(argument, ast.Dict)]
    return {key.value for table in tables for key in table.keys if isinstance(key, ast.Constant)}


def test_every_name_of_a_vendor_in_our_python_is_an_entry() -> None:
    used = {name for file in python_files() for name in vendor_names(read(file))}
    assert {"torch_npu.npu_fusion_attention", f"{DEVICE}.mem_get_info"} < used
    assert used - names_of("module", "name", "operator") == set()


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import torch_npu", "torch_npu"),
        ("from mindspeed.core import parallel_state", "mindspeed.core.parallel_state"),
        ("import_module('vllm_ascend.worker').start()", "vllm_ascend.worker.start"),
        ("npu = import_module('torch_npu')\nnpu.npu_swiglu(x)", "torch_npu.npu_swiglu"),
        ("torch.get_device_module(kind).ipc_collect()", "torch_npu.npu.ipc_collect"),
        ("self.d = torch.get_device_module(k)\nself.d.seed()", "torch_npu.npu.seed"),
        ("torch.npu.init()", "torch_npu.npu.init"),
        ("d = torch.get_device_module(k)\ns = d.Stream()\ns.query()", "torch_npu.npu.Stream.query"),
    ],
)
def test_a_planted_name_of_a_vendor_is_found(source: str, name: str) -> None:
    assert name in vendor_names(source)
    if name != "torch_npu":
        assert name not in names_of("module", "name", "operator")


def test_everything_that_is_imported_of_vllm_on_an_npu_is_an_entry() -> None:
    used = set(engine_imports())
    assert "vllm.LLM" in used
    assert len(used) > 15
    assert used - names_of("name") == set()


def test_everything_that_is_reached_through_the_engine_and_its_worker_is_an_entry() -> None:
    last_parts = {name.rpartition(".")[2] for name in names_of("name")}
    used = {part for file in ENGINE for part in engine_attributes(read(file))}
    assert {"driver_worker", "kv_caches", "get_model", "wake_up"} < used
    assert used - last_parts - OF_THE_CPU_WORKER == set()


def test_the_arguments_of_every_call_are_those_of_its_entry() -> None:
    attention, engine = read("mindrl/platform/attention.py"), read("mindrl/rollout/vllm/engine.py")
    [kernel] = calls(attention, "torch_npu.npu_fusion_attention")
    arguments = arguments_of("torch_npu.npu_fusion_attention")
    assert arguments[: len(kernel.args)] == ["query", "key", "value", "head_num", "input_layout"]
    assert set(arguments[len(kernel.args) :]) == keywords(kernel)
    [made] = calls(engine, "LLM")
    of_the_device = set(PLATFORMS["npu"].engine_options)
    of_a_run = set(rollout_options("model", GenerateConfig(), PLATFORMS["npu"], 1))
    assert set(arguments_of("vllm.LLM")) == keywords(made) | of_a_run | of_the_device
    sampling = Sampling(section=SamplingConfig(), stop_token_ids=())
    for name, others in (("SamplingParams", vllm_parameters(sampling, 1)), ("TokensPrompt", ())):
        used = set(others).union(*(keywords(call) for call in calls(engine, name)))
        assert set(arguments_of(f"vllm.{name}")) == used
    for name in ("sleep", "wake_up"):
        [call] = calls(engine, f"self.llm.{name}")
        assert set(arguments_of(f"vllm.LLM.{name}")) == keywords(call)
        assert set(arguments_of(f"vllm_ascend.worker.worker.NPUWorker.{name}")) == keywords(call)


def test_every_environment_variable_of_an_npu_worker_is_an_entry() -> None:
    platform = PLATFORMS["npu"]
    values = platform.worker_environment(workers=1, one_machine=True, deterministic=True)
    refused = {each.name for each in platform.settings if each.rule == "refused"}
    used = {*values, *refused, platform.visible_variable} - OF_NO_VENDOR
    assert len(used) == 20
    assert used - names_of("variable") == set()


def test_variables_that_the_newer_generation_does_not_read_have_its_release() -> None:
    rows = json.loads(read("tests/unit/npu_contract/npu_contract_newer.json"))
    reads = {row["name"] for row in rows if row["evidence"].startswith("read in Python")}
    ours = {name for name in names_of("variable") if name.startswith("VLLM_ASCEND_")}
    marked = {each.name: each.until for each in PLATFORMS["npu"].settings if each.until}
    assert "VLLM_ASCEND_ENABLE_FLASHCOMM1" in ours & reads
    assert marked == dict.fromkeys(ours - reads, "0.30")


def test_every_variable_of_a_vendor_in_the_shell_library_is_an_entry() -> None:
    text = "".join(path.read_text("utf-8") for path in sorted((ROOT / "scripts/lib").glob("*.sh")))
    used = set(re.findall(r"\b(?:ASCEND|HCCL|ATB|CANN|GLOO|TP)_[A-Z_]+\b", text)) - OUR_VARIABLES
    assert {"ASCEND_HOME_PATH", "ATB_HOME_PATH", "HCCL_SOCKET_IFNAME"} < used
    assert used - names_of("variable") == set()


def test_the_settings_that_mindspeed_is_told_are_entries_and_no_others() -> None:
    [told] = calls(read("mindrl/launch/worker.py"), "configure_megatron")
    [added] = calls(
        read("mindrl/platform/patches/npu_megatron.py"),
        "import_module('mindspeed.megatron_adaptor').repatch",
    )
    assert mapping_keys(told) | mapping_keys(added) == names_of("setting")


def test_every_entry_is_used_in_the_file_that_it_names() -> None:
    unused = [
        (entry.name, entry.used_by)
        for entry in ENTRIES
        if (entry.spelled or entry.name.rpartition(".")[2]) not in read(entry.used_by)
    ]
    assert unused == []


def test_no_entry_is_there_twice() -> None:
    seen = [(entry.pin.module, entry.kind, entry.name, entry.values) for entry in ENTRIES]
    assert len(seen) == len(set(seen)) >= 90


def requirements(section: Any) -> set[str]:
    return {line.split("#")[0].strip() for line in section}


@pytest.mark.parametrize("origin", ["extra", "dependency"])
def test_the_pins_are_those_of_the_project_file(origin: Origin) -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    pinned = {pin.requirement for pin in PINS if pin.origin == origin}
    if origin == "extra":
        assert pinned == requirements(project["optional-dependencies"]["npu"])
    else:
        assert pinned == {"ray==2.60.0"}
        assert pinned < requirements(project["dependencies"])


def test_the_preflight_looks_for_the_pinned_packages_and_takes_their_versions() -> None:
    script = read("scripts/lib/ascend.sh")
    looked_for = re.findall(r"^' (torch_npu .*)$", script, flags=re.MULTILINE)[0].split()
    # Hydra stands for the packages that pip installs with mindrl.
    assert set(looked_for) == {pin.module for pin in PINS} - {"torch", "vllm"} | {"hydra"}
    for pin in PINS:
        if pin.module not in looked_for:
            continue
        if pin.commit:
            assert pin.branch in script
        else:
            # From pyproject.toml, which another test compares with the pins.
            assert f"$(pinned {pin.distribution})" in script
