"""A few tokens that measure the log-prob gap if a step may train only on tokens of older weights.

Replicas that run ahead sample the tokens right after they get weights, and the trainer computes
their log-probs while it has the same weights. With two jobs and a spool, the trainer computes the
log-probs of tokens when it publishes weights, and a rollout job's engines after they load them.

Shapes: B sequences, T positions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from mindrl.batch.prompts import sequence_seed
from mindrl.batch.rollouts import Responses, Rollouts
from mindrl.batch.sequences import Sequences
from mindrl.config.generate import Truncation
from mindrl.observability.metrics import Metrics
from mindrl.rollout.engine import Request, Sampling
from mindrl.spool.weights import KnownLogprobs
from mindrl.trainer.engines import Replica
from mindrl.trainer.mismatch import GAP, mean_and_max
from mindrl.trainer.source.interface import Answering
from mindrl.trainer.step_checks import UNKNOWN_GAPS
from mindrl.trainer.worker_handle import WorkerHandle

PROBE_RESPONSES, _TOKENS = 8, 8
_KNOWN_ROWS = 64


@dataclass(frozen=True, kw_only=True)
class WeightProbe:
    """Requests that each replica answers first, with each version of the weights."""

    requests: Sequence[Request]
    sampling: Sampling

    @classmethod
    def of(cls, answering: Answering, seed: int, version: int) -> "WeightProbe":
        """Create a probe from the first prompts of the step after a version and the run's seed."""
        prompts = answering.prompts_from(version * answering.per_step, PROBE_RESPONSES)
        asked, section = answering.sampling, answering.sampling.section
        # From the full distribution: the trainer computes its log-probs.
        short = replace(
            section, max_tokens=min(_TOKENS, section.max_tokens), **Truncation().truncation()
        )
        requests = [
            Request(
                token_ids=prompt.token_ids,
                drawn=0,
                seed=sequence_seed(seed, step=version, uid=prompt.uid, sample=place),
                images=prompt.images,
            )
            for place, prompt in enumerate(prompts)
        ]
        return cls(requests=requests, sampling=replace(asked, section=short, is_seeded=True))

    def draw(self, replica: Replica) -> Responses:
        """Return the responses of a replica that has no other requests.

        Raises:
            WorkerDiedError: The replica is lost.
        """
        replica.begin(self.requests, self.sampling)
        missing = len(self.requests)
        while missing:
            missing -= len(replica.advance(_TOKENS, ())[0])
        return replica.take()

    def rollouts(self, drawn: Mapping[int, Responses]) -> Rollouts | None:
        """Return the replicas' responses; the group of a sequence is its replica's number."""
        if not drawn:
            return None
        prompts = [request.token_ids for request in self.requests] * len(drawn)
        responses = Responses.joined([*drawn.values()])
        laid_out = Rollouts.from_responses(prompts, responses, range(len(prompts))).with_images(
            [request.images for request in self.requests] * len(drawn)
        )
        replicas = [number for number in drawn for _ in self.requests]
        return replace(laid_out, group_B=torch.tensor(replicas))


def probed_gap(workers: WorkerHandle, probed: Rollouts | None) -> Metrics:
    """Return the gap of a probe under the trainer's current weights, for the worst replica."""
    if probed is None:
        return {}
    keys = [probed.lengths_B[:, None], probed.tokens_BT]
    if probed.image_numbers_BI is not None:
        keys.append(probed.image_numbers_BI)
    keys_BX = torch.cat(keys, dim=1)
    different, place_B = torch.unique(keys_BX, dim=0, return_inverse=True)
    first = [int((place_B == place).nonzero()[0]) for place in range(len(different))]
    logprobs_BT = _read(workers, probed.sequences(), first)[place_B]
    gap_BT = (probed.rollout_logprobs_BT - logprobs_BT).abs()
    mask_BT, replicas = probed.response_mask_BT, sorted({*probed.group_B.tolist()})
    each = [gap_BT[mask_BT & (probed.group_B == number)[:, None]] for number in replicas]
    return _worst(each)


def known_logprobs(workers: WorkerHandle, rollouts: Rollouts) -> KnownLogprobs:
    """Return the log-probs of one token of some responses under the trainer's current weights."""
    taken_B = torch.arange(len(rollouts))[:: -(-len(rollouts) // _KNOWN_ROWS)]
    mask_BT = rollouts.response_mask_BT[taken_B]
    # The first token of the first response, the second of the second, and so on.
    places_B = torch.arange(len(taken_B)) % mask_BT.sum(dim=1)
    is_place_BT = mask_BT & (mask_BT.cumsum(dim=1) == places_B[:, None] + 1)
    ends_B = is_place_BT.int().argmax(dim=1)
    sequences = Sequences(
        tokens_BT=rollouts.tokens_BT[taken_B],
        lengths_B=ends_B + 1,
        response_mask_BT=torch.arange(rollouts.tokens_BT.size(1)) == ends_B[:, None],
    )
    logprobs_BT = _read(workers, sequences, range(len(taken_B)))
    tokens = zip(sequences.tokens_BT.tolist(), sequences.lengths_B.tolist(), strict=True)
    return KnownLogprobs(
        rows=[row[:length] for row, length in tokens],
        logprobs=logprobs_BT.gather(1, ends_B[:, None])[:, 0].tolist(),
    )


def loaded_gap(workers: WorkerHandle, known: KnownLogprobs | None, temperature: float) -> Metrics:
    """Measure the gap of engines that have loaded weights with these known log-probs."""
    if known is None:
        return {}
    known_B = torch.tensor(known.logprobs)
    found = torch.tensor(workers.next_logprobs(known.rows, temperature))
    return _worst([*(found - known_B).abs()])


def _read(workers: WorkerHandle, sequences: Sequences, rows: Sequence[int]) -> Tensor:
    """Return the actor's log-probs of some rows, padded to the full width, [B, T]."""
    read_BT = workers.compute_log_prob(sequences.rows(torch.tensor(rows))).logprobs_BT
    return pad(read_BT, (0, sequences.tokens_BT.size(1) - read_BT.size(1)))


def _worst(gaps: Sequence[Tensor]) -> Metrics:
    """Return the gap of the worst replica, from the distances at the tokens of each, [N]."""
    each = [mean_and_max(GAP, gap_N) for gap_N in gaps]
    largest = {name: max(gap[name] for gap in each if gap) for name in GAP if any(each)}
    unknown = sum(int((~gap_N.isfinite()).sum()) for gap_N in gaps)
    tokens = {"logprob_gap/probe_tokens": float(sum(map(len, gaps)))}
    return largest | tokens | ({UNKNOWN_GAPS: float(unknown)} if unknown else {})


def worst_gap(parts: Sequence[Mapping[str, float]]) -> Metrics:
    """Return the maximum of the gaps of the parts of a step."""
    names = {name: None for part in parts for name in part}
    return {name: max(part[name] for part in parts if name in part) for name in names}


def with_probe(step: Metrics, probe: Metrics) -> Metrics:
    """Add a probe's gap to the metrics of a step; the larger gap counts."""
    both = step | probe
    for name in GAP:
        if name in step and name in probe:
            both[name] = max(step[name], probe[name])
    if unknown := step.get(UNKNOWN_GAPS, 0.0) + probe.get(UNKNOWN_GAPS, 0.0):
        both[UNKNOWN_GAPS] = unknown
    return both
