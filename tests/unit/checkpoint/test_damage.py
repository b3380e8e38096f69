"""A checkpoint of two ranks, damaged in a hundred ways: each is noticed and its file is named.

None is given to a worker: the checkpoint before it is taken, which nothing was done to.
"""

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations
from pathlib import Path

import pytest
import torch

from mindrl.checkpoint.commits import MANIFEST, STATE, Checkpoint, Commits, verify, verify_share
from mindrl.checkpoint.state_files import NewSlice, write_state
from mindrl.errors import CheckpointError

TENSORS = tuple(f"{role}-0000{rank}.safetensors" for role in ("actor", "critic") for rank in (0, 1))
FILES = (*TENSORS, STATE, MANIFEST)
BEFORE, DAMAGED = "step-00000003", "step-00000004"
Harm = Callable[[Path], None]
"""Damages a folder of checkpoints."""


def save(commits: Commits, step: int, ranks: int = 2) -> None:
    folder, files = commits.begin(step), []
    for role in ("actor", "critic"):
        for rank in range(ranks):
            rows = 12 // ranks
            box = ((rank * rows, (rank + 1) * rows), (0, 5))
            slices = [
                NewSlice(kind, f"{role}.weight", box, torch.full((rows, 5), step + part / 8))
                for part, kind in enumerate(("weight", "exp_avg", "exp_avg_sq"))
            ]
            files.append(write_state(folder / f"{role}-{rank:05}.safetensors", slices))
    commits.commit(step, files, {"step": step, "updates": {"actor": step, "critic": step}})


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints of two steps, and beside them one that three ranks wrote."""
    root = tmp_path_factory.mktemp("written")
    for step in (3, 4):
        save(Commits(root), step)
    save(Commits(root / "of-three"), 4, ranks=3)
    return root


def newest_verified(root: Path) -> tuple[Checkpoint, list[str]]:
    """Look as a run does: the driver at manifests and sizes, then two ranks at the tensors."""
    damaged: dict[Path, str] = {}
    while True:
        newest, problems = Commits(root).newest_complete(damaged=damaged)
        assert newest is not None
        found = []
        for rank in (0, 1):
            try:
                verify_share(newest.folder, rank, 2)
            except CheckpointError as error:
                found.append(str(error))
        if not found:
            return newest, problems
        damaged[newest.folder] = "\n".join(found)


def flip(name: str, eighth: int, root: Path) -> None:
    path = root / DAMAGED / name
    data = bytearray(path.read_bytes())
    data[(len(data) - 1) * eighth // 8] ^= 1
    path.write_bytes(data)


def cut(name: str, halves: int, root: Path) -> None:
    path = root / DAMAGED / name
    data = path.read_bytes()
    path.write_bytes(data[: halves * len(data) // 2 - (halves == 2)])


def grow(name: str, root: Path) -> None:
    with (root / DAMAGED / name).open("ab") as file:
        file.write(b"\0")


def drop(name: str, root: Path) -> None:
    (root / DAMAGED / name).unlink()


def zero(name: str, root: Path) -> None:
    path = root / DAMAGED / name
    data = path.read_bytes()
    path.write_bytes(data[:-64] + bytes(64))


def swap(one: str, other: str, root: Path) -> None:
    first, second = root / DAMAGED / one, root / DAMAGED / other
    contents = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(contents)


def take(names: tuple[str, ...], source: str, root: Path) -> None:
    for name in names:
        shutil.copyfile(root / source / name, root / DAMAGED / name)


def cases() -> Iterator[tuple[str, str, Harm]]:
    """Yield what is done, the file that is to be named, and the doing."""
    for name in FILES:
        for eighth in range(9):
            yield f"a bit of {name} at {eighth} eighths", name, partial(flip, name, eighth)
        for halves in range(3):
            yield f"{name} cut to {halves} halves", name, partial(cut, name, halves)
        yield f"{name} and a byte", name, partial(grow, name)
        yield f"no {name}", name, partial(drop, name)
    for name in TENSORS:
        yield f"zeros in {name}", name, partial(zero, name)
        yield f"{name} of the step before", name, partial(take, (name,), BEFORE)
    for one, other in combinations(TENSORS, 2):
        yield f"{one} and {other} in each other's place", one, partial(swap, one, other)
    for name in (STATE, MANIFEST):
        yield f"{name} of the step before", name, partial(take, (name,), BEFORE)
    of_run = (STATE, MANIFEST)
    yield "a manifest and a state of the step before", MANIFEST, partial(take, of_run, BEFORE)
    three = f"of-three/{DAMAGED}"
    yield "a manifest of three ranks", TENSORS[0], partial(take, (MANIFEST,), three)
    yield "a rank of three", TENSORS[1], partial(take, (TENSORS[1],), three)


CASES = {said: (name, harm) for said, name, harm in cases()}


def test_there_are_a_hundred_and_the_checkpoint_itself_is_whole(written: Path) -> None:
    assert len(CASES) >= 100
    newest, problems = newest_verified(written)
    assert (newest.step, problems) == (4, [])
    assert {each.name for each in newest.files} == {*TENSORS, STATE}


@pytest.mark.parametrize("said", CASES)
def test_damage_is_found_before_a_weight_is_used_and_the_file_is_named(
    said: str, written: Path, tmp_path: Path
) -> None:
    name, harm = CASES[said]
    root = tmp_path / "checkpoints"
    shutil.copytree(written, root)
    harm(root)
    newest, problems = newest_verified(root)
    assert newest.folder == root / BEFORE
    verify(newest.folder, newest.files)
    (problem,) = problems
    assert f"{root / DAMAGED / name}" in problem


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_ranks_verify_each_file_once_and_in_the_layout_of_the_save_their_own(
    ranks: int, written: Path
) -> None:
    folder = written / DAMAGED
    shares = [verify_share(folder, rank, ranks) for rank in range(ranks)]
    assert sum(shares) == sum((folder / name).stat().st_size for name in TENSORS)
    if ranks == 2:
        own = [[name for name in TENSORS if name[-13] == str(rank)] for rank in (0, 1)]
        assert shares == [sum((folder / name).stat().st_size for name in names) for names in own]
