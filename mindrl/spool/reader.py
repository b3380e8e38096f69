"""The reader of records: each response once, by the number of its prompt and of its sample."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from mindrl.errors import SpoolError, StopRequestedError
from mindrl.spool.folder import Spool
from mindrl.spool.leases import Leases
from mindrl.spool.records import Place, Record


@dataclass(kw_only=True)
class StepReader:
    """Takes all records of one step after the other; for the only train job of a spool.

    A record stays in the spool until a checkpoint holds its step: a train job that is killed trains
    on it again from the weights of before.
    """

    spool: Spool
    leases: Leases
    parts: int
    """Of a step."""
    tell: Callable[[str], None]
    waits: bool = True
    """False ends the job where a step is not whole, as the signal `drain` does."""
    _told: set[str] = field(default_factory=set)

    def take(
        self,
        step: int,
        ids: Collection[tuple[int, int]],
        weights: str,
        heed: Callable[[], None],
    ) -> list[Record]:
        """Wait until a step is whole; returns its records in order.

        A record that is damaged, or was drawn by other weights than `weights`, is set aside, and
        drawn again by the rollout job.

        Args:
            step: From 1.
            ids: What the step consists of.
            weights: The folder of those that must have drawn it.
            heed: Raises where the job is to end.

        Raises:
            StopRequestedError: The job ends here.
            SpoolError: The records are of other responses.
        """
        spool, found = self.spool, dict[int, Record]()
        spool.note(replace(spool.progress(), gathering=step))
        while True:
            for part in range(self.parts):
                if part not in found and (record := self._read(Place(step, part), weights)):
                    found[part] = record
            if len(found) == self.parts:
                break
            if not self.waits or spool.heard("drain"):
                raise StopRequestedError(f"step {step} is not whole in {spool.root}: ended here")
            self._tell_of_nobody(step)
            spool.wait(heed)
        records = [found[part] for part in range(self.parts)]
        got = [each for record in records for each in record.ids]
        if len({*got}) != len(got) or {*got} != {*ids}:
            raise SpoolError(
                f"step {step} in {spool.root} has {len(got)} responses, {len({*got})} of them "
                f"different; {len({*got} & {*ids})} of the {len(ids)} that this job trains on"
            )
        return records

    def confirm(self, step: int, needed_version: int) -> None:
        """Forget what a checkpoint holds, up to a step, and weights that nobody needs behind it."""
        spool = self.spool
        if step > spool.progress().confirmed:
            spool.note(replace(spool.progress(), confirmed=step))
        spool.records.forget(step)
        spool.weights.forget(needed_version)

    def _read(self, place: Place, weights: str) -> Record | None:
        records = self.spool.records
        try:
            record = records.read(place)
            if record.weights == weights:
                return record
            why = f"{place} was drawn by {record.weights}, and is to be by {weights}"
        except FileNotFoundError:
            return None
        except SpoolError as error:
            why = str(error)
        self.tell(f"{why}; it lies in {records.set_aside(place)} and is drawn again")
        return None

    def _tell_of_nobody(self, step: int) -> None:
        if self.leases.living("rollout") or "nobody" in self._told:
            return
        self._told.add("nobody")
        self.tell(
            f"step {step} waits for a rollout job: none is at work on {self.spool.root}; "
            "start one with mindrl job rollout"
        )
