"""Engines of two pipeline stages, filled from shards, against one engine that loaded the folder."""

from collections.abc import Callable, Mapping

import pytest
from forked_workers import ForkedWorkers
from nightly import chosen_names
from shards_messages import Case, Filled, Loaded
from test_rollout_shards import PROMPTS, Engine, folders

pytestmark = [pytest.mark.distributed, pytest.mark.nightly]

__all__ = ["folders"]
ENGINES: Mapping[str, Engine] = {
    "qwen3_moe": Engine(family="qwen3_moe"),
    # Three layers: two on the first stage, one on the last.
    "deepseek_v3": Engine(family="deepseek_v3"),
    "glm4_moe": Engine(family="glm4_moe"),
    # Both stages have the embedding.
    "qwen2 tied": Engine(family="qwen2", tied=True),
    "qwen3 untied": Engine(family="qwen3"),
    "llama untied": Engine(family="llama"),
    "phi3": Engine(family="phi3"),
}
LOADED = {
    "ordinary": "ordinary",
    "filled": "ordinary",
    "filled later": "ordinary later",
    "filled after a sleep": "ordinary",
}
"""By the moment of the two stages, the engine of one process with the same weights."""


@pytest.fixture(scope="module")
def filled(
    request: pytest.FixtureRequest,
    forked_workers: ForkedWorkers,
    folders: Callable[[Engine], tuple[str, str]],
) -> dict[str, tuple[Loaded, list[Filled]]]:
    """What one process saw of engines that loaded both folders, and what each of two stages saw."""
    chosen = chosen_names(request)
    names = [name for name in ENGINES if name in chosen]
    cases: dict[int, list[Case]] = {1: [], 2: []}
    for name in names:
        first, later = folders(ENGINES[name])
        for stages, of_size in cases.items():
            case = Case(folder=first, later_folder=later, pipeline_parallel_size=stages)
            of_size.append(case)
    (one,) = forked_workers.run("shards_probe:ordinary_engines", cases[1], PROMPTS)
    two = forked_workers.run("shards_probe:fill_engines", cases[2], PROMPTS, ("ordinary",), ranks=2)
    return {name: (one[at], [rank[at] for rank in two]) for at, name in enumerate(names)}


@pytest.mark.parametrize("name", ENGINES)
def test_two_stages_answer_as_one_process_at_every_moment(
    filled: dict[str, tuple[Loaded, list[Filled]]], name: str
) -> None:
    one, stages = filled[name]
    for stage in stages:
        assert stage.answers.keys() == LOADED.keys()
        for moment, answers in stage.answers.items():
            for (tokens, logprobs), (expected, theirs) in zip(
                answers, one.answers[LOADED[moment]], strict=True
            ):
                assert tokens == expected, moment
                assert logprobs == pytest.approx(theirs, abs=1e-5), moment


@pytest.mark.parametrize("name", ENGINES)
def test_each_stage_expects_what_its_table_holds_and_both_have_every_layer(
    filled: dict[str, tuple[Loaded, list[Filled]]], name: str
) -> None:
    one, stages = filled[name]
    for stage in stages:
        assert stage.shapes.expected == stage.shapes.table
        assert stage.memory["loaded"].parameters == stage.memory["ordinary"].parameters
    names = [{each for each in stage.shapes.table if ".layers." in each} for stage in stages]
    assert names[0] & names[1] == set()
    assert names[0] | names[1] == {each for each in one.table if ".layers." in each}
