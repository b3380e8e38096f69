"""An export whose files are written by several ranks: the folder is that of one process."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from forked_workers import ForkedWorkers
from reshard_messages import SHARD_BYTES, Way
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from mindrl.checkpoint.export import exported_model
from mindrl.config.run import RunConfig
from mindrl.launch.parts import worker_handle
from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.models.description import read_description
from mindrl.models.sharding import full_sharding
from mindrl.preflight.run_shardings import unordered_shardings

pytestmark = pytest.mark.distributed
MakeModel = Callable[..., Path]
LAYOUT = TrainLayout(tp=2, pp=2)


def way(folder: Path) -> Way:
    return Way(folder=str(folder), train=LAYOUT, rollout=RolloutLayout(dp=4))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


FILES = tuple(f"model-{number:05}-of-00005.safetensors" for number in range(1, 6))


def test_ranks_write_their_files_and_the_folder_is_that_of_one_process_to_the_bit(
    forked_workers: ForkedWorkers, random_model_of: MakeModel, tmp_path: Path
) -> None:
    source = random_model_of("qwen3")
    target = tmp_path / "model"
    found = forked_workers.run("export_probe:exported", way(source), str(target), ranks=4)
    shares = (FILES[:2], FILES[2:3], FILES[3:4], FILES[4:])
    assert found == [([*share], "") for share in shares]

    table = full_sharding(
        read_description(str(source)), world_size=1, holders=[0], dtype="float32"
    ).table(0)
    tensors = load_file(source / "model.safetensors")
    with exported_model(
        str(source), tmp_path / "alone", table, dtype="float32", shard_bytes=SHARD_BYTES
    ) as sink:
        for name in table:
            sink.open(name).copy_(tensors[name])
            sink.close(name)
    written = contents(target)
    assert json.loads(written.pop("mindrl_export.json")) == {"step": 3}
    assert written == contents(tmp_path / "alone")
    assert {*FILES, "model.safetensors.index.json", "config.json"} <= written.keys()

    theirs = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).state_dict()
    assert [name for name in tensors if not torch.equal(theirs[name], tensors[name])] == []

    # On two nodes without a shared disk, the ranks of the first write all files.
    apart = forked_workers.run(
        "export_probe:exported_from_two_nodes", way(source), str(tmp_path / "apart"), ranks=4
    )
    assert apart == [([*FILES[:3]], ""), ([*FILES[3:]], ""), ([], ""), ([], "")]
    assert contents(tmp_path / "apart") == contents(target)
    assert not (tmp_path / "elsewhere").exists()


def test_a_run_exports_its_tokenizer_and_the_layers_that_it_does_not_train(
    forked_workers: ForkedWorkers,
    random_model_of: MakeModel,
    run_config: Callable[..., RunConfig],
    tmp_path: Path,
) -> None:
    source, tokenizer, target = (tmp_path / name for name in ("source", "tokenizer", "model"))
    shutil.copytree(random_model_of("qwen3"), source)
    tensors = load_file(source / "model.safetensors")
    drafts = {"mtp.fc.weight": torch.ones(2, 3)}
    save_file(tensors | drafts, source / "model.safetensors", metadata={"format": "pt"})
    tokenizer.mkdir()
    for name in ("tokenizer.json", "own.jinja"):
        (tokenizer / name).write_text(name, "utf-8")
    keys = {
        "actor_config.backend": "archon:d2",
        "rl_config.actor_resource.num_npus": 2,
        "megatron_training.tokenizer_name_or_path": str(tokenizer),
        "megatron_training.chat_template": str(tokenizer / "own.jinja"),
        "sft_config": {},
    }
    plan = unordered_shardings(run_config(source, keys)).ordered.plan
    group = forked_workers.start(plan)
    worker_handle(group, plan).export("actor", target, {})
    group.stop()
    found = contents(target)
    assert found["tokenizer.json"] == b"tokenizer.json"
    assert found["chat_template.jinja"] == b"own.jinja"
    assert load_file(target / "model-00001-of-00001.safetensors").keys() == tensors.keys()
    kept = load_file(target / "model-kept.safetensors")
    assert kept.keys() == drafts.keys()
    assert torch.equal(kept["mtp.fc.weight"], drafts["mtp.fc.weight"])

    (tokenizer / "own.jinja").unlink()
    with pytest.raises(AssertionError, match=r"chat_template=.*own\.jinja: no such file"):
        forked_workers.start(plan)


def test_a_rank_that_cannot_write_ends_the_export_on_all_ranks_and_nothing_is_left(
    forked_workers: ForkedWorkers, random_model_of: MakeModel, tmp_path: Path
) -> None:
    target, before = tmp_path / "model", b"an earlier export"
    target.mkdir()
    (target / "model.safetensors").write_bytes(before)
    model = way(random_model_of("qwen3"))
    found = forked_workers.run("export_probe:exported", model, str(target), 2, ranks=4)
    (error,) = {error for _, error in found}
    assert error.startswith(f"cannot export the model to {target}: [Errno 27] File too large")
    assert contents(target) == {"model.safetensors": before}
    assert [*tmp_path.iterdir()] == [target]


def test_a_rank_that_is_killed_while_it_writes_leaves_the_earlier_export(
    forked_workers: ForkedWorkers, random_model_of: MakeModel, tmp_path: Path
) -> None:
    target, before = tmp_path / "model", b"an earlier export"
    target.mkdir()
    (target / "model.safetensors").write_bytes(before)
    model = way(random_model_of("qwen3"))
    with pytest.raises(AssertionError, match=r"ReshardError|RuntimeError"):
        forked_workers.run("export_probe:killed", model, str(target), ranks=4)
    assert contents(target) == {"model.safetensors": before}
    again = forked_workers.run("export_probe:exported", model, str(target), ranks=4)
    assert {error for _, error in again} == {""}
    assert (target / "model.safetensors.index.json").is_file()
    assert [*tmp_path.iterdir()] == [target]
