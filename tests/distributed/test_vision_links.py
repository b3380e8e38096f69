"""A tower that does not learn, on its way to a replica on its own devices: sent once."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
from forked_workers import ForkedWorkers
from test_links import APART, groups_of
from test_vision import GAP_BOUND, Seen, gap_to_transformers
from vision_rows import kept_pictures, save_tiny, shown_rows

from mindrl.batch.rollouts import Responses
from mindrl.checkpoint.files import tensor_shapes
from mindrl.config.generate import SamplingConfig
from mindrl.config.run import RunConfig
from mindrl.rollout.engine import Sampling

pytestmark = pytest.mark.distributed

MakeConfig = Callable[..., RunConfig]
FROZEN = APART | {
    "actor_config.backend": "fsdp:d2",
    "actor_config.freeze_vision_tower": True,
    "rl_config.rollout_resource.num_npus": 1,
    "generate_config.max_model_len": 128,
    "generate_config.verify_weights": "always",
}


def bytes_of(shapes: Mapping[str, tuple[int, ...]], *, tower: bool) -> int:
    """Return the bytes of the tower, or of the rest, in float32."""
    return sum(4 * prod(shape) for name, shape in shapes.items() if ("visual." in name) == tower)


def test_a_frozen_tower_is_sent_once_on_each_link(
    forked_workers: ForkedWorkers, run_config: MakeConfig, tmp_path: Path
) -> None:
    images, numbers = kept_pictures(tmp_path / "pictures")
    folder = save_tiny(tmp_path / "model", "qwen2_5_vl")
    this = Seen(folder, images, shown_rows(folder, numbers))
    changes = FROZEN | {"data_config.images.folder": images.folder}
    linked = groups_of(forked_workers, run_config, folder, changes)
    (replica,), rows = linked.replicas.values(), [this.rows[at] for at in (0, 2, 3)]
    prompts = [row.token_ids[: row.asked] for row in rows]
    section = SamplingConfig(temperature=1.0, max_tokens=6)
    asked = Sampling(section=section, stop_token_ids=(258,))
    answers: list[Responses] = []
    moved: list[tuple[int, int]] = []
    for version in range(4):
        if version == 3:
            # A replica that comes back has lost its weights: all are sent.
            linked.start(0)
            assert linked.link(0) == [None, None]
            (replica,) = linked.replicas.values()
        linked.trainers.call_all("change", version)
        lost, received = linked.publish(version, [0])
        assert (lost, received[0][0][0]) == ([{}, {}], "")
        linked.trainers.call_all("export", str(tmp_path / str(version)), {})
        given = [row.images for row in rows]
        answers += replica.call_all("generate_sequences", prompts, asked, [1, 2, 3], given)
        sent = sum(each["bytes/reshard_sent"] for each in linked.trainers.call_all("flush_metrics"))
        (got,) = replica.call_all("flush_metrics")
        moved.append((sent, got["bytes/reshard_received"]))
    linked.stop()
    shapes = tensor_shapes(str(folder))
    tower, rest = (bytes_of(shapes, tower=is_tower) for is_tower in (True, False))
    assert tower > 0.2 * rest
    assert moved == [(each, each) for each in (tower + rest, rest, rest, tower + rest)]
    bare = [replace(row, token_ids=row.token_ids[: row.asked]) for row in rows]
    for version, given_answers in enumerate(answers):
        assert gap_to_transformers(this, tmp_path / str(version), bare, given_answers) <= GAP_BOUND
