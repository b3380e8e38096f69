"""Routes of sequences that three versions of the weights sampled, on two engines.

Each token is trained with the experts of the version that sampled it: compared with a network of
transformers that is given them, version by version. Shapes: B sequences, T positions, N their
tokens together, K experts of a token.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from forked_workers import ForkedWorkers
from test_layouts import worker_handle
from test_router_replay import Forced
from torch import Tensor

from mindrl.batch.experience import Experience, Minibatch
from mindrl.batch.rollouts import Responses, Rollouts
from mindrl.batch.route_keys import with_content_keys
from mindrl.checkpoint.commits import Commits
from mindrl.config.generate import SamplingConfig
from mindrl.config.rl import RLConfig
from mindrl.config.run import RunConfig
from mindrl.preflight.run_shardings import unordered_shardings
from mindrl.rollout.engine import Request, Sampling
from mindrl.trainer.engine_rounds import RoundEnds
from mindrl.trainer.minibatches import MinibatchDealer
from mindrl.trainer.worker_handle import WorkerHandle

pytestmark = pytest.mark.distributed

ROUND, VERSIONS = 8, 3
"""Most tokens that each version samples: a sequence that ends itself continues with the next."""
SAMPLING = Sampling(
    section=SamplingConfig(temperature=1.0, max_tokens=ROUND * VERSIONS), stop_token_ids=()
)
# An engine begins with three of them, and continues every second one.
PROMPTS = [tuple(range(5 + row, 12 + 2 * row)) for row in range(6)]
WAYS: dict[str, Any] = {
    "rl_config.actor_resource.num_npus": 2,
    "rl_config.partial_rollout": True,
    "generate_config.sampling_config.max_tokens": ROUND * VERSIONS,
    "actor_config.expert_model_parallel_size": 2,
    "actor_config.router_replay": "R3",
    # A step after which every tenth token has other experts.
    "actor_config.lr": 0.02,
}


class Sampled(NamedTuple):
    """Sequences, and the folders of the weights that sampled them."""

    actor: WorkerHandle
    rollouts: Rollouts
    folders: list[Path]
    ends_VB: Tensor
    """Tokens of each sequence after each version."""


def extended(actor: WorkerHandle, drawn: list[list[int]], *, steps: int) -> Responses:
    """Sample more tokens of each sequence."""
    requests = [
        Request(
            token_ids=(*prompt, *tokens),
            drawn=len(tokens),
            seed=row,
            sampled=len(prompt) + len(tokens) if tokens else 0,
        )
        for row, (prompt, tokens) in enumerate(zip(PROMPTS, drawn, strict=True))
    ]
    return actor.generate_until(requests, SAMPLING, lambda _: True, rounds=RoundEnds(steps))


def learn(actor: WorkerHandle, config: RunConfig, rollouts: Rollouts) -> None:
    """Update the weights."""
    wanted_B = (rollouts.tokens_BT % 3 == 0).float().mean(1)
    mask_BT = rollouts.response_mask_BT
    experience = with_content_keys(rollouts).into(
        Experience,
        old_logprobs_BT=rollouts.rollout_logprobs_BT,
        advantages_BT=(wanted_B - wanted_B.mean())[:, None] * mask_BT * 10,
        ref_logprobs_BT=None,
    )
    corrects = config.rollout_correction is not None
    rl = RLConfig(mini_batch_size=len(PROMPTS))
    dealer = MinibatchDealer(rl, seed=0, longest=ROUND, corrects=corrects)
    for minibatch in dealer.cut(experience, dealer.deal(experience.group_B), Minibatch):
        assert actor.update(minibatch).metrics["without_routes"] == 0.0


@pytest.fixture(scope="module")
def sampled(
    mixed_model: Path,
    forked_workers: ForkedWorkers,
    run_config: Callable[..., RunConfig],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Sampled]:
    """Sequences of which each version has sampled a third."""
    config, root = run_config(mixed_model, WAYS), tmp_path_factory.mktemp("versions")
    plan = unordered_shardings(config).ordered.plan
    group = forked_workers.start(plan)
    actor = worker_handle(group, plan)
    rows = range(len(PROMPTS))
    drawn: list[list[int]] = [[] for _ in rows]
    logprobs: list[list[float]] = [[] for _ in rows]
    folders: list[Path] = []
    ends: list[list[int]] = []
    for version in range(VERSIONS):
        found = extended(actor, drawn, steps=ROUND)
        for row, (tokens_N, logprobs_N) in enumerate(found.each()):
            drawn[row] += tokens_N.tolist()
            logprobs[row] += logprobs_N.tolist()
        ends.append([len(PROMPTS[row]) + len(drawn[row]) for row in rows])
        folders.append(root / str(version))
        actor.export("actor", folders[-1], {})
        responses = Responses.of(drawn, logprobs, [False for _ in rows])
        rollouts = Rollouts.from_responses(PROMPTS, responses, rows)
        if version < VERSIONS - 1:
            learn(actor, config, rollouts)
    yield Sampled(actor, rollouts, folders, torch.tensor(ends))
    group.stop()


def as_drawn(sampled: Sampled) -> list[Tensor]:
    """Return the experts [N, K] of each layer, of each token by the version after it."""
    rollouts = sampled.rollouts
    chosen = [Forced(folder).read(rollouts)[1] for folder in sampled.folders]
    B, T = rollouts.tokens_BT.shape
    # The last token before a version is the first that it has sampled a token after.
    is_later_VBT = torch.arange(T) + 1 >= sampled.ends_VB[:-1, :, None]
    version_N = is_later_VBT.sum(0).flatten()
    layers = zip(*chosen, strict=True)
    return [torch.stack(each)[version_N, torch.arange(B * T)] for each in layers]


def replayed(actor: WorkerHandle, rollouts: Rollouts) -> Tensor:
    return actor.compute_log_prob(with_content_keys(rollouts).sequences()).logprobs_BT


def test_each_token_keeps_the_experts_of_the_version_that_sampled_it(sampled: Sampled) -> None:
    actor, rollouts, folders, _ = sampled
    newest = Forced(folders[-1])
    free_BT, own = newest.read(rollouts)
    given = as_drawn(sampled)
    forced_BT, _ = newest.read(rollouts, given)
    differs_N = torch.stack(
        [
            (mine.sort(-1).values != theirs.sort(-1).values).any(-1)
            for mine, theirs in zip(own, given, strict=True)
        ]
    ).any(0)
    assert differs_N.double().mean() > 0.05
    assert (free_BT - forced_BT).abs().max() > 0.1
    torch.testing.assert_close(replayed(actor, rollouts), forced_BT, atol=5e-5, rtol=0)


def test_only_the_routes_of_open_sequences_are_kept_and_a_checkpoint_has_them(
    sampled: Sampled, tmp_path: Path
) -> None:
    actor, rollouts, *_ = sampled
    all_BT = replayed(actor, rollouts)
    free_BT = actor.compute_log_prob(rollouts.sequences()).logprobs_BT
    commits = Commits(tmp_path)
    actor.begin_save(commits.begin(1))
    files = [each for rank in actor.finish_save() for each in rank.files]
    folder = commits.commit(1, files, {}).folder
    assert [each.name for each in files if "routes" in each.name] == [
        f"routes-{rank:05}.safetensors" for rank in range(2)
    ]
    keys = with_content_keys(rollouts).route_keys_B
    assert keys is not None
    actor.retain_routes(keys[1::2].tolist())
    half_BT = replayed(actor, rollouts)
    assert torch.equal(half_BT[1::2], all_BT[1::2])
    torch.testing.assert_close(half_BT[::2], free_BT[::2], atol=5e-5, rtol=0)
    actor.retain_routes([])
    torch.testing.assert_close(replayed(actor, rollouts), free_BT, atol=5e-5, rtol=0)
    actor.restore(folder, {"actor": 2})
    assert torch.equal(replayed(actor, rollouts), all_BT)
