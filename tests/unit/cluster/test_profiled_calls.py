"""Which calls of a worker are profiled, by torch's own profiler on this host."""

import gzip
import json
from pathlib import Path

import pytest
import torch

from mindrl.cluster.profiled_calls import ProfiledCalls
from mindrl.config.profiler import ProfilerConfig

METHODS = ("generate_sequences", "compute_log_prob", "update", "flush_metrics")


def profiled(folder: Path, rank: int = 0, **keys: object) -> list[str]:
    """Make four calls in steps 1 to 3; return the files."""
    config = ProfilerConfig(profile=True, profile_step_start=2, profile_step_end=3, **keys)
    profiles = ProfiledCalls(config, "cpu", rank, f"worker_{rank}", folder)
    for step in (1, 2, 3, None):
        for method in METHODS:
            with profiles.of(method, step):
                torch.ones(3, 3) @ torch.ones(3, 3)
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.json.gz"))


def test_the_calls_of_the_steps_that_are_named_have_a_profile_each(tmp_path: Path) -> None:
    files = profiled(tmp_path)
    assert files == [
        f"profile/worker_0/step-2/{method}-1/trace.json.gz"
        for method in ("compute_log_prob", "generate_sequences", "update")
    ]
    for file in files:
        events = json.loads(gzip.decompress((tmp_path / file).read_bytes()))["traceEvents"]
        assert "aten::mm" in {event["name"] for event in events}


def test_other_stages_and_other_ranks_are_left_alone(tmp_path: Path) -> None:
    assert profiled(tmp_path, 1, profile_ranks=(0,)) == []
    assert profiled(tmp_path, 1, profile_ranks=(1,), stage=("actor_update",)) == [
        "profile/worker_1/step-2/update-1/trace.json.gz"
    ]


def test_two_calls_of_a_step_have_a_folder_each_in_the_folder_that_is_named(
    tmp_path: Path,
) -> None:
    config = ProfilerConfig(profile=True, profile_save_path=str(tmp_path / "own"))
    profiles = ProfiledCalls(config, "cpu", 0, "worker_0", tmp_path / "run")
    for _ in range(2):
        with profiles.of("update", 1):
            torch.ones(3)
    made = sorted(path.name for path in (tmp_path / "own/worker_0/step-1").iterdir())
    assert made == ["update-1", "update-2"]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("shapes", "there"), [(True, True), (False, False)])
def test_shapes_are_in_it_where_they_are_asked_for(
    shapes: bool, there: bool, tmp_path: Path
) -> None:
    (file,) = profiled(tmp_path, stage=("actor_update",), profile_record_shapes=shapes)
    text = gzip.decompress((tmp_path / file).read_bytes()).decode()
    assert ("Input Dims" in text) is there
