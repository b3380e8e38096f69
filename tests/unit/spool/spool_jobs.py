"""Two jobs of a spool without models: what they train is a number that all they read goes into.

    python spool_jobs.py train|rollout SPOOL OWN_FOLDER STEPS BYTES

No file of a job has room for more than so many bytes; -1 is as many as there are.

`train` learns a step by mixing its records into a number, exports that as weights, and keeps it in
a checkpoint behind every third step, with the responses that went into it. `rollout` draws records
that follow from the weights.
"""

import hashlib
import json
import resource
import sys
import time
from functools import partial
from pathlib import Path

from mindrl.spool.duties import Duties
from mindrl.spool.files import sealed, unsealed, wait_for_room, write_over
from mindrl.spool.folder import Spool, SpoolLimits, SpoolProgress
from mindrl.spool.reader import StepReader
from mindrl.spool.records import Place, Record

PARTS, PROMPTS, SAMPLES, SAVES = 3, 2, 2, 3
SECONDS = 0.03
"""That drawing a record takes, and learning a step."""
LIMITS = SpoolLimits(lease_seconds=30.0, poll_seconds=0.01)
LAG = 1
notify = partial(print, flush=True)
"""What is said is in a file at once, whatever Python is told of its buffers."""


def version_of(step: int) -> int:
    """Say whose weights draw a step: those of before the one that is learned meanwhile."""
    return max(0, step - 1 - LAG)


def ids_of(place: Place) -> tuple[tuple[int, int], ...]:
    first = ((place.step - 1) * PARTS + place.part) * PROMPTS
    return tuple((uid, n) for uid in range(first, first + PROMPTS) for n in range(SAMPLES))


def mixed(*parts: bytes) -> bytes:
    return hashlib.sha256(b" ".join(parts)).digest()


def drawn(model: bytes, place: Place) -> bytes:
    return mixed(model, str(place).encode()) * 100


def learned(steps: int) -> bytes:
    """Return the model of jobs that nobody disturbs, in one process."""
    models = [b"new"]
    for step in range(1, steps + 1):
        source, places = models[version_of(step)], [Place(step, part) for part in range(PARTS)]
        models.append(mixed(models[-1], *(drawn(source, place) for place in places)))
    return models[-1]


def train(spool: Spool, own: Path, steps: int) -> None:
    saved = own / "checkpoint"
    done, model, trained = 0, b"new", []
    if saved.exists():
        found = json.loads(unsealed(saved))
        done, model, trained = found["step"], bytes.fromhex(found["model"]), found["trained"]
    with spool.leases("the train job") as leases:
        assert leases.take("train") is None, "there is one"
        reader = StepReader(spool=spool, leases=leases, parts=PARTS, notify=notify)

        def publish(step: int) -> None:
            def export(folder: Path) -> None:
                folder.mkdir()
                (folder / "model").write_bytes(model)

            wait_for_room(
                lambda: spool.weights.publish(step, export), notify, lambda: time.sleep(0.01)
            )

        publish(done)
        reader.confirm(done, version_of(done + 1))
        for step in range(done + 1, steps + 1):
            weights = spool.weights.find(version_of(step))
            assert weights is not None, "it was published"
            ids = [each for part in range(PARTS) for each in ids_of(Place(step, part))]
            records = reader.take(step, ids, weights.name, lambda: None)
            time.sleep(SECONDS)
            model = mixed(model, *(record.content for record in records))
            trained += [each for record in records for each in record.ids]
            publish(step)
            if step % SAVES == 0:
                state = {"step": step, "model": model.hex(), "trained": trained}
                write_over(saved, sealed(json.dumps(state).encode()))
                reader.confirm(step, version_of(step + 1))
        spool.note(SpoolProgress(gathering=steps, confirmed=steps, done=True))


def rollout(spool: Spool, own: Path, steps: int) -> None:
    with spool.leases("a rollout job") as leases:
        leases.take(f"rollout-{own.name}")
        duties = Duties(spool=spool, leases=leases, steps=steps, parts=PARTS, version_of=version_of)
        while not spool.progress().done:
            duty = duties.take()
            if duty is None:
                time.sleep(0.01)
                continue
            try:
                model = (duty.weights.folder / "model").read_bytes()
            except FileNotFoundError:
                duties.finish(duty)
                continue
            time.sleep(SECONDS)
            record = Record(
                place=duty.place,
                weights=duty.weights.name,
                ids=ids_of(duty.place),
                content=drawn(model, duty.place),
            )
            wait_for_room(
                lambda record=record: spool.records.put(record), notify, lambda: time.sleep(0.01)
            )
            duties.finish(duty)


if __name__ == "__main__":
    job, root, folder, steps, most = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(most), resource.RLIM_INFINITY))
    Path(folder).mkdir(exist_ok=True)
    {"train": train, "rollout": rollout}[job](Spool(Path(root), LIMITS), Path(folder), int(steps))
