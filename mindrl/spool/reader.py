"""Reader of records: each response once, by the uid of its prompt and its sample number."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from mindrl.errors import SpoolError, StopRequestedError
from mindrl.spool.folder import Spool
from mindrl.spool.leases import Leases
from mindrl.spool.records import Place, Record


@dataclass(kw_only=True)
class StepReader:
    """Reads the records of consecutive steps, for the only train job of a spool.

    A record stays in the spool until a checkpoint contains its step: a killed train job trains on
    it again from the previous weights.
    """

    spool: Spool
    leases: Leases
    parts: int
    """Parts per step."""
    notify: Callable[[str], None]
    waits: bool = True
    """False ends the job if a step is incomplete, like the signal `drain`."""
    _has_warned: bool = False

    def take(
        self,
        step: int,
        ids: Collection[tuple[int, int]],
        weights: str,
        check_interrupt: Callable[[], None],
    ) -> list[Record]:
        """Wait until a step is complete; return its records in order.

        A record that is damaged, or was sampled with weights other than `weights`, is set aside and
        generated again by the rollout job.

        Args:
            step: From 1.
            ids: Uid and sample number of each response of the step.
            weights: Name of the folder of the required weights.
            check_interrupt: Raises if the job must end.

        Raises:
            StopRequestedError: The job ends here.
            SpoolError: The records contain other responses.
        """
        spool, found = self.spool, dict[int, Record]()
        spool.note(replace(spool.progress(), gathering=step))
        while True:
            for part in range(self.parts):
                if part not in found and (record := self._read(Place(step, part), weights)):
                    found[part] = record
            if len(found) == self.parts:
                break
            if not self.waits or spool.has_signal("drain"):
                raise StopRequestedError(f"step {step} in {spool.root} is incomplete: ended here")
            self._warn_without_rollout_jobs(step)
            spool.wait(check_interrupt)
        records = [found[part] for part in range(self.parts)]
        got = [each for record in records for each in record.ids]
        if len({*got}) != len(got) or {*got} != {*ids}:
            raise SpoolError(
                f"step {step} in {spool.root} has {len(got)} responses, {len({*got})} of them "
                f"different; {len({*got} & {*ids})} of the {len(ids)} that this job trains on"
            )
        return records

    def confirm(self, step: int, needed_version: int) -> None:
        """Delete records up to a checkpointed step, and weights older than `needed_version`."""
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
            why = f"{place} was generated with weights {record.weights} instead of {weights}"
        except FileNotFoundError:
            return None
        except SpoolError as error:
            why = str(error)
        self.notify(f"{why}; moved it to {records.set_aside(place)}, and it is generated again")
        return None

    def _warn_without_rollout_jobs(self, step: int) -> None:
        if self.leases.living("rollout") or self._has_warned:
            return
        self._has_warned = True
        self.notify(
            f"step {step} waits for responses: {self.spool.root} has no running rollout job; "
            "start one with mindrl job rollout"
        )
