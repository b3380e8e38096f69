"""Conversations whose environment shows pictures: pool, engine and trainer agree about them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from forked_workers import ForkedWorkers
from galleries import shown
from nightly import at_night_but
from picture_pools import END, TOKENIZER, gallery_pool, listen, write
from training_messages import Case, Course
from transformers import AutoProcessor
from vision_rows import PAD, encoded, noise, save_tiny

from mindrl.algorithms.answer_loss import answer_loss
from mindrl.batch.balance import MicroBatching
from mindrl.batch.rollouts import Rollouts
from mindrl.config.generate import SamplingConfig
from mindrl.config.images import ImageConfig
from mindrl.layouts.layout import TrainLayout
from mindrl.rollout.engine import Sampling
from mindrl.trainer.source.pool import GroupPool

pytestmark = pytest.mark.distributed

GAP_BOUND = 1e-5
"""Of log-probs of the engine, whose kernels round otherwise."""
ASKED = "<image>What is it?"


def rendered(model: Path, *turns: Sequence[dict[str, Any]]) -> list[int]:
    """Return the token ids of a conversation by transformers' own processor."""
    processor = AutoProcessor.from_pretrained(model)
    messages = [{"role": role, "content": [*content]} for role, content in turns]  # type: ignore[misc]
    found = processor.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=True
    )
    ids: list[int] = found["input_ids"][0]
    return ids


@pytest.mark.parametrize("family", at_night_but(["qwen2_5_vl"], ["qwen2_5_vl", "qwen3_vl"]))
def test_a_picture_of_a_later_turn_is_seen_alike_by_engine_trainer_and_transformers(
    family: str, forked_workers: ForkedWorkers, tmp_path: Path
) -> None:
    model = save_tiny(tmp_path / "model", family)
    asked = noise((60, 100), 3)
    (tmp_path / "asked.png").write_bytes(encoded(asked))
    row = {"messages": [{"role": "user", "content": ASKED}], "images": ["asked.png"]}
    with gallery_pool(tmp_path, model, row, max_turns=2) as pool:
        # The second response has the image token among its words, before the second picture.
        write(pool, 0, "one")
        write(pool, 1, "o", PAD, "ne")
        requests = [pool.request(each) for each in pool.incomplete()]
        assert [len(each.images) for each in requests] == [2, 2]
        question = [{"type": "image", "image": asked}, {"type": "text", "text": "What is it?"}]
        whole = rendered(
            model,
            ("user", question),
            ("assistant", [{"type": "text", "text": "one"}]),
            ("user", shown("one")),
        )
        assert [*requests[0].token_ids] == whole
        first = len(pool.groups[0].sequences[0].conversation.prompt_ids)  # type: ignore[union-attr]
        assert [*requests[1].token_ids] == [*whole[: first + 1], PAD, *whole[first + 1 :]]
        sampling = Sampling(
            section=SamplingConfig(temperature=1.0, max_tokens=pool.longest), stop_token_ids=(END,)
        )
        images = ImageConfig(folder=str(tmp_path / "kept"))
        short = [replace(each, drawn=pool.longest - 8) for each in requests]
        (answers,) = forked_workers.run("vision_probe:answered", model, images, short, sampling)
        rollouts = with_answers(pool, answers)
    assert rollouts.image_numbers_BI is not None
    assert rollouts.image_numbers_BI[:, 1].tolist() == [requests[0].images[1].number] * 2
    # Only what the policy wrote is trained on.
    written = [TOKENIZER.decode(each) for each in rollouts.response_tokens()]
    for text, start in zip(written, ("one<|im_end|>", "o<|image_pad|>ne<|im_end|>"), strict=True):
        assert text.startswith(start)
    assert rollouts.response_mask_BT.sum(dim=1).tolist() == [
        4 + len(answers.each()[0][0]),
        5 + len(answers.each()[1][0]),
    ]
    course = Course(
        minibatches=[], loss=answer_loss, optimizer={}, micro_batching=MicroBatching(sequences=2)
    )
    case = Case(
        folder=str(model), layout=TrainLayout(), backend="fsdp", settings={"images": images}
    )
    (found,) = forked_workers.run("archon_probe:lives", [(case, course)], rollouts.sequences())
    is_drawn_BT = rollouts.rollout_logprobs_BT.ne(-0.5) & rollouts.response_mask_BT
    assert is_drawn_BT.sum(dim=1).tolist() == [len(each) for each, _ in answers.each()]
    gap_BT = (found[0].logprobs_BT - rollouts.rollout_logprobs_BT).abs()
    assert gap_BT[is_drawn_BT].max() <= GAP_BOUND


def with_answers(pool: GroupPool, answers: Any) -> Rollouts:
    """Give each response its second turn, which is the last; return the conversations."""
    finished = answers.finished_B.tolist()
    for row, sampled, ended in zip(pool.incomplete(), answers.each(), finished, strict=True):
        pool.extend(row, sampled, step=1, finished=ended)
    listen(pool)
    groups = [*pool.groups.values()]
    return pool.rollouts(1, groups)
