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
from mindrl.spool.reader import RecordReader
from mindrl.spool.records import PromptRange, Record
from mindrl.spool.requests import SpoolRequest

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


def requests_of(step: int) -> list[SpoolRequest]:
    """Return the requests for the responses that a step trains on."""
    first = (step - 1) * PARTS * PROMPTS
    starts = range(first, first + PARTS * PROMPTS, PROMPTS)
    return [
        SpoolRequest(
            prompts=PromptRange(start, start + PROMPTS),
            step=step,
            step_first=first,
            part=part,
            version=version_of(step),
        )
        for part, start in enumerate(starts)
    ]


def ids_of(prompts: PromptRange) -> tuple[tuple[int, int], ...]:
    return tuple((uid, n) for uid in range(prompts.first, prompts.end) for n in range(SAMPLES))


def mixed(*parts: bytes) -> bytes:
    return hashlib.sha256(b" ".join(parts)).digest()


def drawn(model: bytes, prompts: PromptRange) -> bytes:
    return mixed(model, str(prompts).encode()) * 100


def learned(steps: int) -> bytes:
    """Return the model of jobs that nobody disturbs, in one process."""
    models = [b"new"]
    for step in range(1, steps + 1):
        source, asked = models[version_of(step)], requests_of(step)
        models.append(mixed(models[-1], *(drawn(source, each.prompts) for each in asked)))
    return models[-1]


def export(model: bytes, folder: Path) -> None:
    folder.mkdir()
    (folder / "model").write_bytes(model)


def train(spool: Spool, own: Path, steps: int) -> None:
    saved = own / "checkpoint"
    done, model, trained = 0, b"new", []
    if saved.exists():
        found = json.loads(unsealed(saved))
        done, model, trained = found["step"], bytes.fromhex(found["model"]), found["trained"]
    with spool.leases("the train job") as leases:
        assert leases.take("train") is None, "there is one"
        reader = RecordReader(spool=spool, leases=leases, notify=notify)

        def publish(step: int) -> None:
            write = partial(spool.weights.publish, step, partial(export, model))
            wait_for_room(write, notify, lambda: time.sleep(0.01))

        def confirm(step: int) -> None:
            reader.confirm(step, step * PARTS * PROMPTS, version_of(step + 1))

        publish(done)
        confirm(done)
        for step in range(done + 1, steps + 1):
            reader.begin(step, step * PARTS * PROMPTS)
            records = step_records(reader, step, steps)
            time.sleep(SECONDS)
            model = mixed(model, *(record.content for record in records))
            trained += [each for record in records for each in record.ids]
            publish(step)
            if step % SAVES == 0:
                state = {"step": step, "model": model.hex(), "trained": trained}
                write_over(saved, sealed(json.dumps(state).encode()))
                confirm(step)
        spool.note(SpoolProgress(gathering=steps, confirmed=steps, done=True))
        spool.clear()


def step_records(reader: RecordReader, step: int, steps: int) -> list[Record]:
    """Send the requests of a step and of those ahead of it, and wait for its records."""
    for ahead in range(step, min(step + LAG, steps) + 1):
        for request in requests_of(ahead):
            reader.send(request, lambda: None)
    return [reader.take(each, ids_of(each.prompts), lambda: None) for each in requests_of(step)]


def rollout(spool: Spool, own: Path, _: int) -> None:
    with spool.leases("a rollout job") as leases:
        leases.take(f"rollout-{own.name}")
        duties = Duties(spool=spool, leases=leases)
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
                prompts=duty.request.prompts,
                weights=duty.weights.name,
                ids=ids_of(duty.request.prompts),
                content=drawn(model, duty.request.prompts),
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
