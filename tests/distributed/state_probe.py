"""What the tests of the training state call in prepared processes."""

from contextlib import ExitStack
from pathlib import Path

import torch.distributed as dist
from state_messages import Kept
from training_messages import Case, Course
from training_probe import copied, of_any_engine, share

from mindrl.checkpoint.commits import WrittenFile
from mindrl.checkpoint.state_files import NewSlice, StateReader, write_state
from mindrl.training.engine import TrainingEngine
from mindrl.workers.state_saver import StateSaver


def save(case: Case, course: Course, folder: str, stop: int) -> Kept:
    """Take the updates; the state behind `stop` of them goes to a file of this rank."""
    model = of_any_engine(case, course.optimizer)
    metrics, written = [], None
    for at in range(len(course.minibatches)):
        if at == stop:
            written = _write(model, folder)
        metrics.append(_update(model, case, course, at))
    assert written is not None
    return _kept(model, metrics, written)


def load(case: Case, course: Course, folder: str, stop: int) -> Kept:
    """Build the model anew, in whatever layout, and take the updates from `stop` on."""
    model = of_any_engine(case, course.optimizer)
    with ExitStack() as stack:
        reader = StateReader(sorted(Path(folder).glob("*.safetensors")), stack)
        model.restore(stop, reader.read)
    again = _write(model, f"{folder}/again")
    metrics = [_update(model, case, course, at) for at in range(stop, len(course.minibatches))]
    return _kept(model, metrics, again)


def begin_anew(case: Case, course: Course, folder: str, stop: int) -> Kept:
    """Build the model anew, take the weights of a checkpoint alone, and one update."""
    model = of_any_engine(case, course.optimizer)
    StateSaver({"actor": model}, {"actor": []}).restore("actor", Path(folder), 0)
    assert model.updates == 0
    again = _write(model, f"{folder}/again")
    return _kept(model, [_update(model, case, course, stop)], again)


def _update(model: TrainingEngine, case: Case, course: Course, at: int) -> dict[str, float]:
    minibatch = share(case, course.minibatches[at])
    return model.train_step(minibatch, course.micro_batching, course.loss)


def _write(model: TrainingEngine, folder: str) -> WrittenFile:
    Path(folder).mkdir(parents=True, exist_ok=True)
    slices = [
        NewSlice(each.kind, each.tensor, each.box, each.values(each.stored).detach())
        for each in model.state_slices()
        if each.is_ours
    ]
    written = write_state(Path(folder, f"actor-{dist.get_rank():05}.safetensors"), slices)
    dist.barrier()
    return written


def _kept(model: TrainingEngine, metrics: list[dict[str, float]], written: WrittenFile) -> Kept:
    return Kept(metrics=metrics, weights=copied(model), written=written)
