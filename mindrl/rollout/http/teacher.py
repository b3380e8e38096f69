"""A teacher on vLLM's server, which returns the log-probs of tokens that others have sampled.

Written for the completions route of vLLM 0.32. The prompt's log-probs are those of temperature 1.

Shapes: B sequences, T positions, R response positions of all sequences, K candidates.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass as plain_dataclass
from dataclasses import field, replace
from threading import Lock
from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from mindrl.batch.likely_tokens import LikelyTokens
from mindrl.batch.sequences import Logprobs, Sequences
from mindrl.config.teacher import Candidates
from mindrl.errors import AnswerError
from mindrl.observability.progress import tick
from mindrl.rollout.http.answers import STRICT, ScoredToken
from mindrl.rollout.http.client import ServerClient

_COMPLETIONS, _DETOKENIZE = "/v1/completions", "/detokenize"
_MOST_OF_SCORE = 256
"""Most bytes of a token and its log-prob in an answer."""
_OPEN_REQUESTS = 64
"""Number of sequences that the server reads at the same time."""

_TokenName = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
"""A token id as a name in JSON."""


@plain_dataclass(frozen=True, kw_only=True)
class ServedTeacher:
    """Client of a teacher's server."""

    client: ServerClient
    candidates: Candidates | None
    """Which tokens it returns besides the sampled ones. None for no others."""
    seconds: float
    """Longest wait for the answer to one sequence."""
    parsing: Lock = field(default_factory=Lock, init=False, compare=False, repr=False)
    """Held while an answer is parsed: until it is in the batch's tensors it takes kilobytes a
    token."""

    def __call__(self, sequences: Sequences) -> Logprobs:
        """Return the log-probs of each sequence.

        Raises:
            AnswerError: An answer is not valid.
            WorkerDiedError: The server does not answer in time, or refuses a sequence.
        """
        assert sequences.image_numbers_BI is None, "validated: a served teacher reads no pictures"
        shape, counts_B = sequences.tokens_BT.shape, sequences.response_mask_BT.sum(dim=1)
        number, total = self.candidates.number if self.candidates else 0, int(counts_B.sum())
        likely = LikelyTokens(
            ids_KR=torch.zeros(number, total, dtype=torch.int64),
            logprobs_KR=torch.zeros(number, total),
            counts_B=counts_B,
        )
        found = Logprobs(logprobs_BT=torch.zeros(shape), likely=likely if number else None)
        most = max(self.client.most_bytes, _MOST_OF_SCORE * shape[1] * (number + 1))
        reader = replace(self, client=replace(self.client, most_bytes=most))
        threads = ThreadPoolExecutor(_OPEN_REQUESTS, thread_name_prefix="teacher")
        try:
            rows = range(len(sequences))
            asked = [threads.submit(reader._read, sequences, row, found) for row in rows]
            for each in as_completed(asked):
                each.result()
                tick()
        finally:
            # After a failure, other requests are still open.
            threads.shutdown(wait=False, cancel_futures=True)
            reader.client.close()
        return found

    def decoded(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens.

        Raises:
            AnswerError: The server returns something else than text.
            WorkerDiedError: The server does not answer in time.
        """
        body = {"tokens": list(token_ids)}
        return self.client.request(
            _Decoded, _DETOKENIZE, body, seconds=self.seconds, again=True
        ).prompt

    def _read(self, sequences: Sequences, row: int, found: Logprobs) -> None:
        """Write the server's log-probs of a sequence into the row of a batch."""
        length = int(sequences.lengths_B[row])
        token_ids: list[int] = sequences.tokens_BT[row, :length].tolist()
        number = self.candidates.number if self.candidates else 0
        body = {"prompt": token_ids, "max_tokens": 1, "prompt_logprobs": number}
        text = self.client.post(_COMPLETIONS, body, seconds=self.seconds, again=True)
        here_T = sequences.response_mask_BT[row]
        with self.parsing:
            scores = self._scores(text, token_ids, torch.nonzero(here_T)[:, 0].tolist())
            found.logprobs_BT[row, here_T] = torch.tensor([each.logprob for each in scores])
            if (likely := found.likely) is not None:
                start, shape = int(likely.counts_B[:row].sum()), (len(scores), number)
                here = slice(start, start + len(scores))
                ids_NK = torch.tensor([each.likely for each in scores]).reshape(shape)
                logprobs_NK = torch.tensor([each.likely_logprobs for each in scores])
                likely.ids_KR[:, here] = ids_NK.T
                likely.logprobs_KR[:, here] = logprobs_NK.reshape(shape).T

    def _scores(self, text: bytes, token_ids: list[int], places: list[int]) -> "list[_Found]":
        """Parse an answer; return the log-probs at each place."""
        (choice,) = self.client.parsed(_Reply, _COMPLETIONS, text).choices
        given = choice.prompt_logprobs
        if len(given) != len(token_ids):
            raise self._garbage(f"{len(given)} log-probs of {len(token_ids)} tokens")
        return [self._found(given[place], token_ids[place], place) for place in places]

    def _found(self, given: "dict[str, ScoredToken] | None", token: int, place: int) -> "_Found":
        scores = {name: each.logprob for name, each in (given or {}).items()}
        if str(token) not in scores:
            raise self._garbage(f"no log-prob of token {token} at position {place}")
        if (highest := max(scores.values())) > 0:
            raise self._garbage(f"a log-prob is {highest}, above 0")
        if self.candidates is None:
            return _Found(scores[str(token)], [], [])
        number, below = self.candidates
        if len(scores) < number:
            raise self._garbage(f"{len(scores)} of {number} candidates at position {place}")
        likely = sorted(scores, key=lambda name: -scores[name])[:number]
        ids = [int(name) for name in likely]
        if max(ids) >= below:
            outside = f"candidate {max(ids)} is outside the policy's vocabulary of {below} tokens"
            raise self._garbage(outside)
        return _Found(scores[str(token)], ids, [scores[name] for name in likely])

    def _garbage(self, what: str) -> AnswerError:
        return self.client.garbage(_COMPLETIONS, what)


class _Found(NamedTuple):
    """Log-probs at a position."""

    logprob: float
    likely: list[int]
    likely_logprobs: list[float]


@dataclass(frozen=True, config=STRICT)
class _Decoded:
    prompt: str


@dataclass(frozen=True, config=STRICT)
class _Choice:
    prompt_logprobs: list[dict[_TokenName, ScoredToken] | None]


@dataclass(frozen=True, config=STRICT)
class _Reply:
    choices: list[_Choice] = Field(min_length=1, max_length=1)
