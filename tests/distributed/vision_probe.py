"""What the tests of vision-language models call in a prepared process; see forked_workers.run."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from vision_rows import Shown

from mindrl.batch.rollouts import Responses
from mindrl.checkpoint.files import tensor_shapes
from mindrl.config.generate import GenerateConfig
from mindrl.config.images import ImageConfig
from mindrl.platform.device import PLATFORMS
from mindrl.rollout.engine import Request, Sampling
from mindrl.rollout.vllm.engine import EngineModel, VllmEngine


@dataclass(frozen=True, kw_only=True)
class EngineLife:
    """What an engine answered, from its start to its second set of weights."""

    first: Responses
    later: Responses
    """With other weights, without a sleep in between."""
    awoken: Responses
    """After a sleep and a load of the same weights."""
    in_rounds: Responses
    """To the same prompts as requests, whose first tokens were drawn before."""
    towers: list[int]
    """Pictures that the tower has encoded, for each of the first three."""
    cached_bytes: int
    """Bytes of the features that the engine kept of the first."""
    refused: str
    """Error of a prompt that the engine expands otherwise."""


def life_of_an_engine(
    folders: tuple[Path, Path], images: ImageConfig, rows: Sequence[Shown], sampling: Sampling
) -> EngineLife:
    """Start an engine without weights, and let it answer the prompts of rows."""
    first, later = folders
    engine = _started(first, images)
    encoded = _counted(engine)
    towers: list[int] = []

    def answers() -> Responses:
        encoded.clear()
        prompts = [row.token_ids[: row.asked] for row in rows]
        found = engine.generate(prompts, sampling, range(len(rows)), [row.images for row in rows])
        towers.append(len(encoded))
        return found

    _load(engine, first)
    of_first = answers()
    cached_bytes = _cached_bytes(engine)
    engine.forget()
    _load(engine, later)
    of_later = answers()
    engine.offload()
    engine.onload("weights")
    _load(engine, later)
    engine.onload("kv_cache")
    awoken = answers()
    engine.begin([*map(_request, rows, range(len(rows)))], sampling)
    engine.advance(1000)
    in_rounds = engine.take_back()
    wrong = [each._replace(tokens=each.tokens - 1) for each in rows[0].images]
    refused = ""
    try:
        engine.generate([rows[0].token_ids[: rows[0].asked]], sampling, [0], [wrong])
    except RuntimeError as error:
        refused = str(error)
    return EngineLife(
        first=of_first,
        later=of_later,
        awoken=awoken,
        in_rounds=in_rounds,
        towers=towers,
        cached_bytes=cached_bytes,
        refused=refused,
    )


def answered(
    folder: Path, images: ImageConfig, requests: Sequence[Request], sampling: Sampling
) -> Responses:
    """Start an engine with the weights of a folder, and let it answer requests."""
    engine = _started(folder, images)
    _load(engine, folder)
    engine.begin(requests, sampling)
    engine.advance(1000)
    return engine.take_back()


def _started(folder: Path, images: ImageConfig) -> VllmEngine:
    return VllmEngine(
        EngineModel(folder=str(folder), whole=tensor_shapes(str(folder)), images=images),
        GenerateConfig(
            dtype="float32",
            max_num_seqs=8,
            max_model_len=128,
            max_num_batched_tokens=256,
            enable_prefix_caching=True,
        ),
        PLATFORMS["cpu"],
        kv_cache_bytes=8 << 20,
        seed=3,
        timeout_seconds=540,
    )


def _request(row: Shown, seed: int) -> Request:
    return Request(token_ids=tuple(row.token_ids), drawn=0, seed=seed, images=tuple(row.images))


def _cached_bytes(engine: VllmEngine) -> int:
    """Return the bytes of the features that the engine keeps."""
    cache: dict[str, torch.Tensor] = engine._worker.model_runner.encoder_cache
    return sum(each.nbytes for each in cache.values())


def _counted(engine: VllmEngine) -> list[Any]:
    """Return a list that grows with each picture that the tower encodes."""
    found: list[Any] = []
    model: Any = engine._worker.model_runner.get_model()
    embed = model.embed_multimodal

    def counting(**given: Any) -> Any:
        found.extend(given["image_grid_thw"].tolist())
        return embed(**given)

    model.embed_multimodal = counting
    return found


@torch.no_grad()
def _load(engine: VllmEngine, folder: Path) -> None:
    sink = engine.weight_sink()
    for file in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            sink.open(name).copy_(tensor)
            sink.close(name)
    sink.finish()
