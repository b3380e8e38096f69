"""Networks of transformers in every role: critics and rewards, their memory, state and offload."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from forked_workers import ForkedWorkers
from nightly import at_night_but
from test_training_layouts import sequences
from test_training_state import assert_equal
from test_training_state import course as updates
from test_values import course, plain_rewards, plain_values, valued
from training_messages import Case, Course, Updated
from transformers import AutoModelForTokenClassification
from value_messages import Judged, ValueTrial

from mindrl.checkpoint.any_family import read_any_description
from mindrl.layouts.layout import TrainLayout
from mindrl.models.decoder import Head
from mindrl.training.planning import Storage, planning_of

pytestmark = pytest.mark.distributed

__all__ = ["updates", "valued"]
FAMILY = "starcoder2"
LAYOUTS: Mapping[str, TrainLayout] = {
    "DP2": TrainLayout(dp=2),
    "TP2": TrainLayout(tp=2),
    "CP2": TrainLayout(cp=2),
    "DP2+TP2": TrainLayout(dp=2, tp=2),
}


def case_of(folder: str, name: str) -> Case:
    return Case(folder=folder, layout=LAYOUTS[name], backend="fsdp")


@pytest.mark.nightly
@pytest.mark.parametrize("names", at_night_but(["DP2 TP2"], ["DP2 TP2", "CP2"]))
def test_values_and_rewards_are_hugging_faces_and_a_critic_learns_as_in_one_process(
    names: str, valued: Callable[..., str], forked_workers: ForkedWorkers
) -> None:
    folder, batch = valued(FAMILY), sequences()
    trial = ValueTrial(case=Case(folder=folder, backend="fsdp"), course=course(folder, updates=3))
    ((one,),) = forked_workers.run("value_probe:judged", [trial], batch)
    plain = AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        values_BT = plain_values(plain, batch)
    assert values_BT.abs().max() > 1.0
    trials = [replace(trial, case=case_of(folder, name)) for name in names.split()]
    replies: list[list[Judged]] = forked_workers.run("value_probe:judged", trials, batch, ranks=2)
    for index, name in enumerate(names.split()):
        for rank, found in enumerate([one, *(reply[index] for reply in replies)], start=-1):
            size = len(values_BT) // (LAYOUTS[name].dp if rank >= 0 else 1)
            first = LAYOUTS[name].replica_of(rank) * size if rank >= 0 else 0
            rows = slice(first, first + size)
            assert found.values is not None
            assert found.rewards is not None
            T = found.values.values_BT.size(1)
            # Products of 128 hidden states of size 3 in float32, four layers.
            torch.testing.assert_close(
                found.values.values_BT, values_BT[rows, :T], atol=1e-4, rtol=0
            )
            rewards_B = plain_rewards(folder, batch)
            torch.testing.assert_close(found.rewards.rewards_B, rewards_B[rows], atol=1e-4, rtol=0)
            for ours, theirs in zip(found.metrics, one.metrics, strict=True):
                assert ours["value_loss"] == pytest.approx(theirs["value_loss"], abs=2e-6), name
            norm = found.metrics[0]["grad_norm"]
            assert norm == pytest.approx(one.metrics[0]["grad_norm"], rel=2e-6), name


def predicted(case: Case, head: Head) -> Iterator[dict[str, int]]:
    planning, storage = planning_of("fsdp"), Storage(dtype="float32", head=head)
    sharding = planning.sharding(read_any_description(case.folder), case.layout, storage)
    trained = planning.trained_bytes(sharding, case.layout, distributed_optimizer=True)
    for read, rank in zip(sharding.held_bytes(), trained, strict=True):
        found = read, rank.weights, rank.gradients, rank.optimizer
        names = ("read", "train_param", "train_grad", "train_optimizer")
        yield dict(zip(names, found, strict=True))


@pytest.mark.parametrize(
    ("ranks", "name"), at_night_but([(2, "TP2")], [(2, "DP2"), (2, "TP2"), (4, "DP2+TP2")])
)
def test_memory_is_planned_to_the_byte_for_actors_and_for_critics(
    ranks: int,
    name: str,
    random_model_of: Callable[..., Path],
    valued: Callable[..., str],
    updates: Course,
    forked_workers: ForkedWorkers,
) -> None:
    one = replace(updates, minibatches=updates.minibatches[:1])
    of: list[tuple[str, Head]] = [
        (str(random_model_of(FAMILY, tied=True)), "vocabulary"),
        (str(random_model_of("olmo2")), "vocabulary"),
        (valued(FAMILY), "value"),
    ]
    asked = [(case_of(folder, name), one, head, "fsdp") for folder, head in of]
    replies = forked_workers.run("memory_probe:found_bytes", asked, ranks=ranks)
    for index, (case, _, head, _) in enumerate(asked):
        assert [reply[index] for reply in replies] == [*predicted(case, head)], case


def test_leaving_the_device_behind_each_update_changes_no_bit(
    random_model_of: Callable[..., Path], updates: Course, forked_workers: ForkedWorkers
) -> None:
    case = case_of(str(random_model_of(FAMILY, tied=True)), "TP2")
    stays, moves = (
        forked_workers.run("training_probe:updates", [case], replace(updates, swap=swap), ranks=2)
        for swap in (False, True)
    )
    pairs: list[tuple[list[Updated], list[Updated]]] = list(zip(stays, moves, strict=True))
    for (stayed,), (moved,) in pairs:
        assert moved.metrics == stayed.metrics
        assert_equal(moved.weights, stayed.weights)
        assert moved.device_bytes == [0] * len(updates.minibatches)
