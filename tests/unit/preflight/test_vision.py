"""Runs whose actor reads pictures: what they cannot have, in words."""

from collections.abc import Callable
from math import prod
from pathlib import Path

import pytest

from mindrl.checkpoint.files import tensor_shapes
from mindrl.config.finding import Finding
from mindrl.config.run import RunConfig
from mindrl.memory.pictures import PictureBytes
from mindrl.memory.plan import rollout_bytes, rollout_regions
from mindrl.memory.schedule import Phase
from mindrl.preflight.activation_estimates import activation_estimates
from mindrl.preflight.memory_plan import Capacity, judged_memory, memory_plan
from mindrl.preflight.model_checks import describe_models, model_findings
from mindrl.preflight.picture_memory import picture_tokens
from mindrl.preflight.run_shardings import RunShardings, unordered_plan, unordered_shardings
from mindrl.preflight.vision_checks import vision_findings
from mindrl.tiny.vision.model import build_vision_model, build_vision_tokenizer

MakeConfig = Callable[..., RunConfig]
FSDP = {"actor_config.backend": "fsdp"}


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeing")
    tokenizer = build_vision_tokenizer()
    build_vision_model(tokenizer, 1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def found(config: RunConfig) -> list[str]:
    models, unread = describe_models(config)
    assert not unread
    return [*map(str, vision_findings(config, models))]


@pytest.mark.parametrize("engine", ["fsdp", "archon"])
def test_it_is_planned_where_pytorch_trains(
    seeing: Path, run_config: MakeConfig, engine: str
) -> None:
    config = run_config(seeing, {"actor_config.backend": engine})
    assert not found(config)
    assert not model_findings(config, describe_models(config)[0])


def test_megatron_refuses_it_and_names_archon(seeing: Path, run_config: MakeConfig) -> None:
    _, (finding,) = describe_models(run_config(seeing, {"actor_config.backend": "megatron"}))
    wanted = "model_type='qwen2_5_vl' has a vision tower, which only archon and fsdp train; needed"
    assert f"{wanted} actor_config.backend=archon:d2" in str(finding)


def test_roles_of_both_engines_see_the_pictures_and_cut_the_same_tensors(
    seeing: Path, run_config: MakeConfig
) -> None:
    keys = {"actor_config.backend": "archon:d2", "ref_config.backend": "fsdp:d2"}
    keys |= {"rl_config.init_kl_coef": 0.1, "rl_config.actor_resource.num_npus": 2}
    config = run_config(seeing, keys)
    models, unread = describe_models(config)
    assert not unread
    assert not found(config)
    assert models["actor"] == models["ref"]


@pytest.mark.parametrize("engine", ["fsdp", "archon"])
def test_only_a_decoder_of_mindrl_cuts_its_sequences(
    seeing: Path, run_config: MakeConfig, engine: str
) -> None:
    keys = {"actor_config.backend": f"{engine}:d1t2", "rl_config.actor_resource.num_npus": 2}
    keys |= {"actor_config.tensor_model_parallel_size": 2}
    keys |= {"megatron_training.sequence_parallel": True}
    config = run_config(seeing, keys)
    refused = [str(each) for each in model_findings(config, describe_models(config)[0])]
    if engine == "archon":
        assert not refused
    else:
        (finding,) = refused
        assert finding.startswith("megatron_training.sequence_parallel=true is not supported: fsdp")


def test_parts_of_a_run_that_would_not_see_pictures_are_refused_by_name(
    seeing: Path, run_config: MakeConfig, random_model_of: Callable[..., Path]
) -> None:
    blind, reads = str(random_model_of("stablelm")), {"rl_config.init_kl_coef": 0.1}
    (of_reference,) = found(run_config(seeing, FSDP | reads | {"ref_config.load": blind}))
    assert of_reference.startswith(f"ref_config.load={blind} has no vision tower")
    turns = FSDP | {"environment_config.tools": ["tools.py:look"]}
    assert not found(run_config(seeing, turns))
    (of_history,) = found(run_config(seeing, turns | {"environment_config.history": "rendered"}))
    assert of_history.startswith("environment_config.history=rendered must be kept with a model")
    (of_agent,) = found(run_config(seeing, FSDP | {"environment_config.agent": "agents.py:solve"}))
    assert of_agent.startswith("environment_config.agent=agents.py:solve must be null with a model")
    (of_job,) = found(run_config(seeing, FSDP | {"spool_config.job": "train"}))
    assert of_job.startswith("spool_config.job=train must be null")
    servers = {"generate_config.servers": ["http://127.0.0.1:8000"]}
    (of_servers,) = found(run_config(seeing, FSDP | servers))
    assert of_servers.startswith("generate_config.servers=http://127.0.0.1:8000 cannot be given")
    in_file = {"generate_config.servers_file": "servers.txt"}
    (of_file,) = found(run_config(seeing, FSDP | in_file))
    assert of_file.startswith("generate_config.servers_file=servers.txt cannot be given with a")
    (of_rewards,) = found(run_config(seeing, FSDP | {"preference_config.loss": "bradley_terry"}))
    assert of_rewards.startswith("preference_config.loss=bradley_terry trains a reward model")
    assert not found(run_config(seeing, FSDP | {"preference_config.loss": "kto"}))
    shared = run_config(seeing, FSDP | {"rl_config.share_prompts": True})
    (of_prompts,) = model_findings(shared, describe_models(shared)[0])
    assert str(of_prompts).startswith("rl_config.share_prompts=true cannot be used: prompts of")
    (of_text,) = found(run_config(blind, FSDP | reads | {"ref_config.load": str(seeing)}))
    assert of_text == f"ref_config.load={seeing} has a vision tower, and the actor has none"


def test_a_frozen_tower_has_no_gradients_in_the_plan_and_has_to_exist(
    seeing: Path, run_config: MakeConfig, random_model_of: Callable[..., Path]
) -> None:
    frozen = FSDP | {"actor_config.freeze_vision_tower": True}
    planned = {}
    for keys in (FSDP, frozen):
        config = run_config(seeing, keys)
        shardings = RunShardings(plan=unordered_plan(config, describe_models(config)[0]))
        (planned[keys is frozen],) = shardings.trained_bytes("actor", distributed_optimizer=True)
    shapes = tensor_shapes(str(seeing))
    tower = sum(4 * prod(shape) for name, shape in shapes.items() if "visual." in name)
    assert planned[True].weights == planned[False].weights
    assert planned[True].gradients == planned[False].gradients - tower
    assert planned[True].optimizer == planned[False].optimizer - 2 * tower
    (found_one,) = found(run_config(random_model_of("stablelm"), frozen))
    assert found_one.startswith("actor_config.freeze_vision_tower=true needs a vision tower")


def test_pictures_are_planned_on_the_host_in_the_engine_and_in_the_tower(
    seeing: Path, run_config: MakeConfig
) -> None:
    """The tower: 2 layers of 64, 128 inside; patches of 14 pixels, four a token; features of 128.

    Prompts have 32 tokens of 48, micro-batches four sequences; all those tokens may be pictures.
    """
    images = {"data_config.images.cache_mib": 3, "data_config.images.features_mib": 5}
    reference = {"rl_config.init_kl_coef": 0.1}
    found = {}
    for frozen in (False, True):
        keys = FSDP | images | reference | {"actor_config.freeze_vision_tower": frozen}
        config = run_config(seeing, keys)
        shardings = RunShardings(plan=unordered_plan(config, describe_models(config)[0]))
        found[frozen] = memory_plan(shardings, None), activation_estimates(shardings.plan)
    (plan, learned), (of_frozen, kept) = found[False], found[True]
    # Actor, reference and engine have opened pictures; only a frozen tower has kept features.
    assert (plan.pictures.host, of_frozen.pictures.host) == (9 << 20, 14 << 20)
    assert plan.host_bytes_of_node(1) == int(plan.host_bytes[0]) + (9 << 20)
    assert plan.pictures.engine == 16_384 * 128 * 4
    assert rollout_bytes(plan) - 16_384 * 128 * 4 == int(plan.sum(rollout_regions(plan)).max())
    tokens, layer = 4 * 32, (9 * 64 + 4 * 128) * 4 + 4 * 64 * 4
    # Two layers, the merger, and pixels in uint8 and float32; the features are kept of both.
    of_tower = 4 * tokens * (2 * layer + 4 * 64 * 4 + 3 * 2 * 14**2 * 5)
    assert learned[Phase.TRAIN] - kept[Phase.TRAIN] == of_tower
    assert learned[Phase.FORWARD] == kept[Phase.FORWARD]


def test_pictures_of_an_environment_are_planned_anywhere_in_a_sequence(
    seeing: Path, run_config: MakeConfig
) -> None:
    """Prompts have 32 tokens of 48; with an environment all 48 may be those of pictures."""
    found = {}
    for name, keys in (("prompt", {}), ("turns", {"environment_config.tools": ["tools.py:look"]})):
        config = run_config(seeing, FSDP | keys)
        plan = unordered_plan(config, describe_models(config)[0])
        part = plan.models["actor"].other
        assert part is not None
        assert part.vision is not None
        found[name] = picture_tokens(plan, part.vision)
    assert found == {"prompt": 32, "turns": 48}


def test_runs_without_a_tower_plan_no_pictures(
    run_config: MakeConfig, random_model_of: Callable[..., Path]
) -> None:
    shardings = unordered_shardings(run_config(random_model_of("stablelm"), FSDP))
    assert memory_plan(shardings, None).pictures == PictureBytes()


@pytest.mark.parametrize("key", ["cache_mib", "features_mib"])
def test_pictures_that_do_not_fit_the_host_name_their_key_and_what_fits(
    seeing: Path, run_config: MakeConfig, key: str
) -> None:
    """Nothing of the run leaves the device."""
    stay = {f"generate_config.offload_train_{part}": False for part in ("param", "grad")}
    keys = FSDP | stay | {"generate_config.offload_train_optimizer": False}
    keys |= {"actor_config.freeze_vision_tower": True}
    keys |= {"data_config.images.cache_mib": 8, "data_config.images.features_mib": 8}
    field = f"data_config.images.{key}"

    def judged(mib: int) -> list[Finding]:
        config = run_config(seeing, keys | {field: mib})
        return judged_memory(unordered_shardings(config), Capacity(host_bytes=64 << 20))[0]

    (finding,) = judged(100)
    assert str(finding).startswith(f"{field}=100: the workers of one machine keep about ")
    (legal,) = finding.legal
    # Actor and engine each keep opened pictures.
    assert legal == {"cache_mib": (64 - 8) // 2, "features_mib": 64 - 2 * 8}[key]
    assert not judged(legal)
    assert judged(legal + 1)
