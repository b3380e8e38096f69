"""Requests of the train job: prompts to answer, and the weights to answer them with."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from mindrl.errors import SpoolError
from mindrl.spool.files import forget_building, remove, sealed, unsealed, write_over
from mindrl.spool.records import PromptRange


@dataclass(frozen=True, kw_only=True)
class SpoolRequest:
    """Prompts that a rollout job answers together, as one record."""

    prompts: PromptRange
    step: int
    """Step that starts them; a response is sampled with the seed of this step."""
    step_first: int
    """Position of the first prompt that the step starts."""
    part: int
    """Index of the request in the step, from 0."""
    version: int
    """Version of the weights: the step after which they were published."""


@dataclass(frozen=True)
class Requests:
    """The folder of these files. Only the train job writes them."""

    root: Path

    def put(self, request: SpoolRequest) -> bool:
        """Write a request; return False, without changes, if it exists.

        Raises:
            OSError: It cannot be written; an existing one is kept.
        """
        if self.read(request.prompts) == request:
            return False
        content = {**asdict(request), "prompts": [request.prompts.first, request.prompts.end]}
        write_over(self.root / str(request.prompts), sealed(json.dumps(content).encode("ascii")))
        return True

    def read(self, prompts: PromptRange) -> SpoolRequest | None:
        """Return a request; None if it does not exist, or is damaged until it is written again."""
        try:
            found = json.loads(unsealed(self.root / str(prompts)))
        except (FileNotFoundError, SpoolError):
            return None
        return SpoolRequest(**{**found, "prompts": PromptRange(*found["prompts"])})

    def prompts(self) -> list[PromptRange]:
        """Return the prompts with a request, in order."""
        names = (PromptRange.of_name(path.name) for path in self.root.iterdir())
        return sorted(each for each in names if each is not None)

    def all(self) -> list[SpoolRequest]:
        """Return all requests in the order of their prompts."""
        return [found for each in self.prompts() if (found := self.read(each)) is not None]

    def forget(self, position: int) -> None:
        """Remove the requests for prompts before a position, and incomplete files."""
        forget_building(self.root)
        for prompts in (each for each in self.prompts() if each.end <= position):
            remove(self.root / str(prompts))
