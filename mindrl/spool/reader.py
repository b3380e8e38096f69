"""Reader of records: each response once, by the uid of its prompt and its sample number."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from mindrl.errors import SpoolError, StopRequestedError
from mindrl.spool.files import wait_for_room
from mindrl.spool.folder import Spool
from mindrl.spool.leases import Leases
from mindrl.spool.records import Record
from mindrl.spool.requests import SpoolRequest
from mindrl.spool.weights import Weights


@dataclass(kw_only=True)
class RecordReader:
    """Sends requests and reads their records, for the only train job of a spool.

    A record stays in the spool until a checkpoint contains the step that trained on it: a killed
    train job sends the same requests again, and trains on the same records.
    """

    spool: Spool
    leases: Leases
    notify: Callable[[str], None]
    waits: bool = True
    """False ends the job if a step is incomplete, like the signal `drain`."""
    _has_warned: bool = False

    def send(self, request: SpoolRequest, check_interrupt: Callable[[], None]) -> None:
        """Send a request, unless the same one was sent before.

        A record of another request for the same prompts is removed. On a full disk this waits.

        Raises:
            StopRequestedError: The job ends here.
        """
        spool = self.spool
        before = spool.requests.read(request.prompts)
        if before is not None and before != request:
            spool.records.remove(request.prompts)
        wait_for_room(
            lambda: spool.requests.put(request), self.notify, lambda: spool.wait(check_interrupt)
        )

    def begin(self, step: int, awaited: int) -> None:
        """Record the step that waits for responses, and the position after its prompts."""
        before = self.spool.progress()
        progress = replace(before, gathering=step, awaited=awaited)
        if progress != before:
            self.spool.note(progress)

    def take(
        self,
        request: SpoolRequest,
        ids: Collection[tuple[int, int]],
        check_interrupt: Callable[[], None],
    ) -> Record:
        """Wait for the record of a request.

        A record that is damaged, or was sampled with other weights, is set aside, and a rollout job
        generates it again.

        Args:
            request: A request that was sent.
            ids: Uid and sample number of each of its responses.
            check_interrupt: Raises if the job must end.

        Raises:
            StopRequestedError: The job ends here.
            SpoolError: The record contains other responses, or the weights are missing.
        """
        spool, weights = self.spool, self._weights(request)
        while (record := self._read(request, weights)) is None:
            if not self.waits or spool.has_signal("drain"):
                raise StopRequestedError(
                    f"step {request.step} in {spool.root} is incomplete: ended here"
                )
            self._warn_without_rollout_jobs(request)
            spool.wait(check_interrupt)
            # It may have been damaged.
            self.send(request, check_interrupt)
        got, different = record.ids, {*record.ids}
        if len(different) != len(got) or different != {*ids}:
            raise SpoolError(
                f"{record.prompts} in {spool.root} has {len(got)} responses, {len(different)} of "
                f"them different; {len(different & {*ids})} of the {len(ids)} that were requested"
            )
        return record

    def confirm(self, step: int, trained: int, version: int) -> None:
        """Record that a checkpoint contains a step, and delete what later steps do not need.

        Args:
            step: Last step that a checkpoint contains.
            trained: Position of the first prompt whose responses are needed after it.
            version: Oldest version of the weights that is needed after it.
        """
        spool = self.spool
        # It is an earlier step if the train job continues from an older checkpoint.
        if step != (before := spool.progress()).confirmed:
            spool.note(replace(before, confirmed=step, trained=trained, done=False))
        spool.requests.forget(trained)
        spool.records.forget(trained)
        spool.weights.forget(version)

    def _weights(self, request: SpoolRequest) -> Weights:
        folders = self.spool.weights
        if (found := folders.find(request.version)) is None:
            raise SpoolError(
                f"{folders.root} has no weights of step {request.version}, which generate the "
                f"responses of step {request.step}: another run used this spool, or they were "
                "removed"
            )
        return found

    def _read(self, request: SpoolRequest, weights: Weights) -> Record | None:
        records, prompts = self.spool.records, request.prompts
        try:
            record = records.read(prompts)
            if record.weights == weights.name:
                return record
            sampled = f"was generated with weights {record.weights} instead of {weights.name}"
            why = f"{prompts} {sampled}"
        except FileNotFoundError:
            return None
        except SpoolError as error:
            why = str(error)
        self.notify(f"{why}; moved it to {records.set_aside(prompts)}, and it is generated again")
        return None

    def _warn_without_rollout_jobs(self, request: SpoolRequest) -> None:
        if self.leases.living("rollout") or self._has_warned:
            return
        self._has_warned = True
        self.notify(
            f"step {request.step} waits for responses: {self.spool.root} has no running rollout "
            "job; start one with mindrl job rollout"
        )
