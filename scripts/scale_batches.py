"""What the driver does with the answers of a step: the part `batches` of bench_scale.py."""

import resource
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from mindrl.batch.rollouts import Rollouts
    from mindrl.batch.sequences import Sequences

PROMPTS, SAMPLES, LONGEST = 64, 16, 4096
"""Prompts of a step, answers to each, and tokens of the longest answer."""


def peak_mib() -> float:
    """Return the peak of this process's resident memory in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured_batches(replicas: int) -> dict[str, float]:
    """Take a step's answers, send what the workers need, and compute the driver's metrics."""
    import torch  # noqa: PLC0415

    from mindrl.data.decoding import ResponseDecoder  # noqa: PLC0415
    from mindrl.trainer.mismatch import mismatch  # noqa: PLC0415

    answers, prompts, group = drawn_answers(replicas)
    tokens, spent = sum(len(each.token_ids_N) for each in answers), dict[str, float]()
    before = peak_mib()

    def timed(name: str, work: Callable[[], Any]) -> Any:
        began = time.process_time()
        found = work()
        spent[name] = time.process_time() - began
        return found

    from mindrl.batch.rollouts import Responses, Rollouts  # noqa: PLC0415

    arrived = [pickled(each) for each in answers]
    unpickled = timed("take", lambda: [restored(each) for each in arrived])
    rollouts: Rollouts = timed(
        "arrange",
        lambda: Rollouts.from_responses(prompts, Responses.joined(unpickled), group),
    )
    shares = timed("share", lambda: [*map(pickled, step_shares(rollouts, replicas))])
    old_BT = torch.where(rollouts.response_mask_BT, rollouts.rollout_logprobs_BT - 1e-3, 0.0)
    timed("measure", lambda: mismatch(rollouts, old_BT, None) | rollouts.metrics())
    read = timed("read", rollouts.response_tokens)
    decode = ResponseDecoder(bytes_alone())
    rollouts.tokens_BT.remainder_(256)
    timed("decode", lambda: [*map(decode, read)])
    return {
        "bytes_per_token": sum(map(pickled_bytes, shares)) / tokens,
        "answer_bytes_per_token": sum(map(pickled_bytes, arrived)) / tokens,
        "driver_seconds_per_million_tokens": sum(spent.values()) / tokens * 1e6,
        "driver_peak_bytes_per_token": (peak_mib() - before) * 2**20 / tokens,
        **{f"{name}_ns_per_token": each / tokens * 1e9 for name, each in spent.items()},
    }


def bytes_alone() -> "PreTrainedTokenizerBase":
    """Return a tokenizer in which each byte is a token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: place for place, letter in enumerate(alphabet)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def drawn_answers(replicas: int) -> tuple[list[Any], list[list[int]], list[int]]:
    """Return each replica's answers, the prompts, and the prompt of each answer."""
    import torch  # noqa: PLC0415

    from mindrl.batch.rollouts import Responses  # noqa: PLC0415
    from mindrl.layouts.layout import even_bounds  # noqa: PLC0415

    generator = torch.Generator().manual_seed(1)
    lengths_B = torch.randint(1, LONGEST, (PROMPTS * SAMPLES,), generator=generator)
    prompts = torch.randint(129_280, (PROMPTS, 256), generator=generator).tolist()

    def answered(lengths_B: torch.Tensor) -> Responses:
        tokens = int(lengths_B.sum())
        return Responses(
            token_ids_N=torch.randint(129_280, (tokens,), generator=generator),
            logprobs_N=-torch.rand(tokens, generator=generator),
            lengths_B=lengths_B,
            finished_B=torch.ones(len(lengths_B), dtype=torch.bool),
        )

    bounds = even_bounds(len(lengths_B), replicas)
    answers = [answered(lengths_B[start:end].clone()) for start, end in bounds]
    return answers, prompts, [index // SAMPLES for index in range(len(lengths_B))]


def step_shares(rollouts: "Rollouts", replicas: int) -> Iterator["Sequences"]:
    """Yield what a GRPO step sends to each replica: an update, which computes old log-probs."""
    import torch  # noqa: PLC0415

    from mindrl.algorithms.token_weights import token_mean_weights  # noqa: PLC0415
    from mindrl.batch.experience import Minibatch  # noqa: PLC0415

    mask_BT = rollouts.response_mask_BT
    advantages_B = torch.randn(len(mask_BT), 1, generator=torch.Generator().manual_seed(2))
    update = rollouts.into(
        Minibatch,
        old_logprobs_BT=None,
        advantages_BT=advantages_B * mask_BT,
        token_weights_BT=token_mean_weights(mask_BT),
        ref_logprobs_BT=None,
        rollout_logprobs_BT=None,
    )
    for rows in torch.arange(len(mask_BT)).chunk(replicas):
        yield update.rows(rows)


def pickled(value: object) -> tuple[bytes, list[bytes]]:
    """Pickle as Ray does: large buffers are separate."""
    from ray import cloudpickle  # noqa: PLC0415

    buffers: list[Any] = []
    text = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return text, [bytes(buffer.raw()) for buffer in buffers]


def restored(packed: tuple[bytes, list[bytes]]) -> Any:
    """Unpickle."""
    from ray import cloudpickle  # noqa: PLC0415

    return cloudpickle.loads(packed[0], buffers=packed[1])


def pickled_bytes(packed: tuple[bytes, list[bytes]]) -> int:
    """Return the bytes of a pickled value with its buffers."""
    return len(packed[0]) + sum(map(len, packed[1]))
