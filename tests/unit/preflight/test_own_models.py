"""A user's own models: where they are accepted, and findings about invalid specs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mindrl.config.run import RunConfig
from mindrl.models.own_family import own_description
from mindrl.platform.device import PLATFORMS
from mindrl.preflight.checks import checked_run
from mindrl.preflight.memory_plan import Capacity
from mindrl.preflight.run_shardings import unordered_shardings

MakeModel = Callable[..., Path]
MakeConfig = Callable[..., RunConfig]
SPEC = "own_nemotron.spec:SPEC"
ARCHON: dict[str, Any] = {
    "actor_config.backend": "archon",
    "megatron_training.own_models": (SPEC,),
    "rl_config.check_memory": False,
}
ROOM = Capacity(device_bytes=None)


def findings(config: RunConfig) -> list[str]:
    found = checked_run(config, PLATFORMS["cpu"], ROOM, needs_files=False).findings
    return [*map(str, found)]


@pytest.fixture
def config_of(
    random_model_of: MakeModel, run_config: MakeConfig
) -> Callable[[dict[str, Any]], RunConfig]:
    return lambda changes: run_config(random_model_of("nemotron"), ARCHON | changes)


@pytest.fixture
def changed(tmp_path: Path) -> Callable[[str], str]:
    """Write a spec that differs from the good one, and return its place."""

    def write(change: str) -> str:
        path = tmp_path / "spec.py"
        head = (
            "from dataclasses import replace\n"
            "from own_nemotron.spec import SPEC as GOOD, args, table\n"
            "from own_nemotron.network import Nemotron\n"
            f"HERE = {str(path)!r}\n"
        )
        path.write_text(f"{head}{change}\n", "utf-8")
        return f"{path}:SPEC"

    return write


def test_it_is_planned_for_every_role_and_vllm_gets_it_whole(
    random_model_of: MakeModel, run_config: MakeConfig
) -> None:
    folder = random_model_of("nemotron")
    critic = {"critic_config.load": str(folder), "rl_config.adv_estimator": "gae"}
    sizes = {"actor_config.tensor_model_parallel_size": 2, "rl_config.actor_resource.num_npus": 2}
    config = run_config(folder, ARCHON | critic | sizes)
    assert not findings(config)
    shardings = unordered_shardings(config)
    # Of 256 rows each rank has a half, of 211 tokens 106; the critic has one number for a head.
    actor, critics = shardings.training["actor"].table(0), shardings.training["critic"].table(1)
    assert actor["model.layers.0.mlp.up_proj.weight"].shape == (128, 128)
    assert actor["model.layers.0.mlp.down_proj.weight"].shape == (128, 128)
    assert actor["model.layers.0.mlp.down_proj.bias"].shape == (128,)
    assert actor["lm_head.weight"].shape == (106, 128)
    assert "lm_head.weight" not in critics
    assert critics["score.weight"].shape == (1, 128)
    rollout = shardings.rollout.table(0)
    assert rollout.keys() == actor.keys()
    assert rollout["lm_head.weight"].shape == (211, 128)


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("nobody.spec:SPEC", "cannot import module 'nobody.spec': ModuleNotFoundError"),
        ("own_nemotron.spec", "must be 'package.module:name' or 'path/to/file.py:name'"),
        ("own_nemotron.spec:SPECS", "has no 'SPECS'; did you mean 'SPEC'?"),
        ("own_nemotron.spec:args", "of type function; need a ModelSpec"),
        ("SPEC = replace(GOOD, sizes='tx')", "sizes='tx' must be d and some of t, p, c"),
        ("SPEC = replace(GOOD, parallelise='')", "has t, which needs parallelise"),
        ("SPEC = replace(GOOD, module='')", "module='' must be a non-empty string"),
        ("SPEC = replace(GOOD, table={})", "table={} must be a function"),
        ("SPEC = 1 / 0", "cannot import"),
    ],
)
def test_a_spec_that_cannot_be_one_is_named_by_its_key(
    place: str,
    sentence: str,
    config_of: Callable[[dict[str, Any]], RunConfig],
    changed: Callable[[str], str],
) -> None:
    place = changed(place) if " = " in place else place
    (found,) = findings(config_of({"megatron_training.own_models": (place,)}))
    assert found.startswith(f"megatron_training.own_models={place!r}")
    assert sentence in found


TABLE = "SPEC = replace(GOOD, table=lambda args: {})"
MODULE = (
    "class Net(Nemotron):\n"
    "    def __init__(self, args, part):\n"
    "        super().__init__(args, part)\n"
    "        {}\n"
    "SPEC = replace(GOOD, module=HERE + ':Net')"
)
HALF = (
    "def half(network, shared):\n"
    "    [shared(each.mlp) for each in network.layers]\n"
    "SPEC = replace(GOOD, parallelise=HERE + ':half')"
)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            "SPEC = replace(GOOD, args=lambda values: values['n_embd'])",
            "config.json: args of {} raised KeyError: 'n_embd'",
        ),
        (TABLE.format("args.sizes"), "table of {} raised AttributeError: "),
        (TABLE.format("{'a': (3, 4)}"), "'a': (3, 4) must be a name and an OwnTensor"),
        (
            TABLE.format("{k: v._replace(cut=2) for k, v in table(args).items()}"),
            "model.embed_tokens.weight: cut=2 is not a dimension of shape=(211, 128)",
        ),
        (
            TABLE.format("{k: v for k, v in table(args).items() if '.3.' not in k}"),
            "num_hidden_layers=4, so the layer numbers",
        ),
        (
            TABLE.format("dict([*table(args).items()][::-1])"),
            "model.embed_tokens.weight must come before the layers, and lm_head.weight after",
        ),
        ("SPEC = replace(GOOD, embedding='wte')", "no tensor wte, the embedding of the spec"),
        (
            TABLE.format("{k: v for k, v in table(args).items() if k[-9:] != 'norm.bias'}"),
            "tensor model.layers.0.input_layernorm.bias is not in the table of {}",
        ),
        (
            TABLE.format("table(args) | {'model.extra': table(args)['lm_head.weight']}"),
            "no tensor model.extra; the table of {} needs [211, 128]",
        ),
        ("SPEC = replace(GOOD, module=GOOD.module + 's')", "did you mean 'Nemotron'?"),
        (MODULE.format("self.wrong"), "of {} raised AttributeError: "),
        (MODULE.format("self.model.layers.pop('1')"), "`layers` must contain its 4 layers"),
        (
            MODULE.format("self.model.norm.bias = None"),
            "it has no model.norm.bias",
        ),
        (
            MODULE.format("self.lm_head = type(self.lm_head)(4, 4, bias=False)"),
            "lm_head.weight has shape [4, 4], but [211, 128] in the table",
        ),
        (
            MODULE.format("self.layers[0].register_buffer('b', self.lm_head.weight.detach())"),
            "buffer model.layers.0.b is in no file",
        ),
        (
            HALF,
            "self_attn.q_proj.weight is split, but its module is not shared by ranks",
        ),
    ],
)
def test_a_part_that_does_not_fit_the_model_is_found_before_anything_starts(
    change: str,
    sentence: str,
    config_of: Callable[[dict[str, Any]], RunConfig],
    changed: Callable[[str], str],
) -> None:
    place = changed(change)
    (found,) = findings(config_of({"megatron_training.own_models": (place,)}))
    assert found.startswith("actor_config.load: ")
    assert sentence.replace("{}", place) in found


@pytest.mark.parametrize(
    ("tied", "sizes", "sentence"),
    [
        (
            False,
            {"tensor_model_parallel_size": 4},
            "actor_config.tensor_model_parallel_size=4 must divide num_key_value_heads=2",
        ),
        (
            True,
            {"pipeline_model_parallel_size": 2},
            f"actor_config.pipeline_model_parallel_size=2 needs a separate head: {SPEC} ties it",
        ),
    ],
)
def test_sizes_that_its_cuts_do_not_take_are_refused(
    tied: bool,
    sizes: dict[str, int],
    sentence: str,
    random_model_of: MakeModel,
    run_config: MakeConfig,
) -> None:
    asked = {f"actor_config.{name}": size for name, size in sizes.items()}
    asked["rl_config.actor_resource.num_npus"] = max(sizes.values())
    (found,) = findings(run_config(random_model_of("nemotron", tied), ARCHON | asked))
    assert found.startswith(sentence)


@pytest.mark.parametrize(
    ("key", "letter"),
    [
        ("tensor_model_parallel_size", "t"),
        ("pipeline_model_parallel_size", "p"),
        ("context_parallel_size", "c"),
    ],
)
def test_a_size_that_the_spec_does_not_name_is_refused_in_words_that_name_it(
    key: str,
    letter: str,
    config_of: Callable[[dict[str, Any]], RunConfig],
    changed: Callable[[str], str],
) -> None:
    left = "dtpc".replace(letter, "")
    place = changed(f"SPEC = replace(GOOD, sizes={left!r})")
    asked: dict[str, Any] = {f"actor_config.{key}": 2, "rl_config.actor_resource.num_npus": 2}
    (found,) = findings(config_of({"megatron_training.own_models": (place,), **asked}))
    need = f"is not among the sizes of {place}, {left!r}; 1 is legal"
    assert found == f"actor_config.{key}=2 {need}"


def test_megatron_reads_no_spec_and_vllm_must_know_the_architecture(
    random_model_of: MakeModel, run_config: MakeConfig, tmp_path: Path
) -> None:
    folder = random_model_of("nemotron")
    (found,) = findings(run_config(folder, ARCHON | {"actor_config.backend": "megatron"}))
    assert "model_type='nemotron' is not supported" in found
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    values = json.loads((tmp_path / "config.json").read_text("utf-8"))
    named = json.dumps(values | {"architectures": ["NobodysForCausalLM"]})
    (tmp_path / "config.json").write_text(named, "utf-8")
    (found,) = findings(run_config(tmp_path, ARCHON))
    assert found == "actor_config.load: the installed vLLM does not support NobodysForCausalLM"


def test_an_installed_package_brings_its_family_by_an_entry_point(
    random_model_of: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(random_model_of("nemotron"))
    assert own_description(folder, ()) is None
    installed = tmp_path / "own_nemotron-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1\n", "utf-8")
    lines = f"[mindrl.archon_models]\nnemotron = {SPEC}\nqwen2 = nobody:SPEC\n"
    (installed / "entry_points.txt").write_text(lines, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = own_description(folder, ())
    assert found is not None
    assert found == own_description(folder, (SPEC,))
    # A family that mindrl knows is not another's because something was installed.
    assert own_description(str(random_model_of("qwen2")), ()) is None
