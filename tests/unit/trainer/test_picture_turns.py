"""Pictures of environments in conversations of a pool; the policy is the test.

Whole runs: tests/e2e/test_vision_turns_run.py; engine and trainer: test_vision_turns.py.
"""

import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from galleries import drawn, shown
from picture_pools import END, GALLERIES, TOKENIZER, gallery_pool, listen, write
from PIL import Image
from transformers import AutoProcessor
from vision_rows import PAD, encoded, save_tiny

from mindrl.batch.conversations import Dialogue
from mindrl.pictures.thumbnails import Thumbnails
from mindrl.report.stored_rows import StoredRows
from mindrl.report.thumbnails import prompt_key, thumbnails_of
from mindrl.trainer.reward_manager import RatedBatch
from mindrl.trainer.rollout_files import RolloutFiles
from mindrl.trainer.source.group import PoolState
from mindrl.trainer.source.pool import GroupPool

TEXT = {"messages": [{"role": "user", "content": "Look"}]}
CALL = '<tool_call>{"name": "look", "arguments": {"what": "two"}}</tool_call>'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("seeing") / "model", "qwen2_5_vl")


@pytest.fixture
def picture_row(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "asked.png").write_bytes(encoded(drawn((60, 100), 7)))
    message = {"role": "user", "content": "Look: <image>"}
    return {"messages": [message], "images": ["asked.png"]}


def talk_of(pool: GroupPool, response: int = 0) -> Dialogue:
    found = next(iter(pool.groups.values())).sequences[response].conversation
    assert found is not None
    return found


def tokens_of(pool: GroupPool, response: int = 0) -> list[int]:
    """Return the whole sequence of a response."""
    written = next(iter(pool.groups.values())).sequences[response].tokens_N.tolist()
    return [*talk_of(pool, response).prompt_ids, *written]


def rendered(model: Path, messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the token ids of a conversation by transformers' own processor."""
    processor = AutoProcessor.from_pretrained(model)
    found = processor.apply_chat_template(
        [*messages], add_generation_prompt=True, tokenize=True, return_dict=True
    )
    ids: list[int] = found["input_ids"][0]
    return ids


def require_at_their_places(pool: GroupPool, response: int = 0) -> None:
    """Compare the runs of image tokens with the places of the pictures."""
    tokens = tokens_of(pool, response)
    places = [place for place, token in enumerate(tokens) if token == PAD]
    images = talk_of(pool, response).images
    expected = [range(each.first, each.first + each.tokens) for each in images]
    assert places == [place for each in expected for place in each]


def test_a_picture_that_an_environment_may_not_show_fails_its_conversation_alone(
    model: Path, tmp_path: Path
) -> None:
    reasons = {
        "a broken one": "picture 1 of its answer: broken picture",
        "an empty one": "picture 1 of its answer: not a picture",
        "a huge one": "picture 1 of its answer: 10000 x 10000 pixels; needed at most",
        "a long one": "picture 1 of its answer: 201 x 1 pixels; needed sides",
        "an animated one": "picture 1 of its answer: several frames",
        "a program": "picture 1 of its answer: not a picture",
        "a number": "EnvironmentFailedError: the picture of a content block is int",
        "no text": "EnvironmentFailedError: the text of a content block is int",
        "a large file": "its process sent a message of",
    }
    with gallery_pool(tmp_path, model, TEXT, answer_bytes=60_000) as pool:
        for what, reason in reasons.items():
            assert pool.turns is not None
            write(pool, 0, what)
            write(pool, 1, "one")
            assert [talk_of(pool, response).ending for response in (0, 1)] == ["failed", None]
            ((found, count),) = pool.turns.taken_failures().items()
            assert found.startswith(reason)
            assert count == 1
            pool.take([0])
            pool.turns.forget()
            pool.start(1, 1)
            listen(pool)


def test_a_model_of_text_cannot_be_shown_a_picture(tmp_path: Path) -> None:
    with gallery_pool(tmp_path, None, TEXT) as pool:
        write(pool, 0, "no picture")
        assert TOKENIZER.decode(tokens_of(pool)).endswith(
            "user\nnone<|im_end|>\n<|im_start|>assistant\n"
        )
        write(pool, 1, "one")
        assert talk_of(pool, 1).ending == "failed"
        assert pool.turns is not None
        assert [*pool.turns.taken_failures()] == [
            "it gave a picture, and actor_config.load names a model without a vision tower"
        ]


def test_texts_around_pictures_are_inert_and_stand_where_transformers_puts_them(
    model: Path, tmp_path: Path, picture_row: dict[str, Any]
) -> None:
    with gallery_pool(tmp_path, model, picture_row, opens="one") as pool:
        write(pool, 0, "two")
        tokens = tokens_of(pool)
        require_at_their_places(pool)
        asked = {"type": "image", "image": drawn((60, 100), 7)}
        messages = [
            {
                "role": "user",
                "content": [{"type": "text", "text": "Look: "}, asked, *shown("one")],
            },
            {"role": "assistant", "content": [{"type": "text", "text": "two"}]},
        ]
        plain = shown("two")
        plain[2] = {"type": "text", "text": "$"}
        plain[3] = {"type": "image", "image": Image.open(BytesIO(plain[3]["image"]))}
        whole = rendered(model, [*messages, {"role": "user", "content": plain}])
        (dollar,) = TOKENIZER("$", add_special_tokens=False)["input_ids"]
        at = len(whole) - 1 - whole[::-1].index(dollar)
        length = len(tokens) - len(whole) + 1
        assert [*tokens[:at], dollar, *tokens[at + length :]] == whole
        assert TOKENIZER.decode(tokens[at : at + length]) == "<|image_pad|><image>"
        request = pool.request(pool.incomplete()[0])
        assert request.images == talk_of(pool).images
        assert len(request.images) == 4


def test_results_of_tools_may_have_pictures(model: Path, tmp_path: Path) -> None:
    tools = {"tools": (f"{GALLERIES}:look",)}
    with gallery_pool(tmp_path, model, TEXT, longest=400, **tools) as pool:
        write(pool, 0, CALL)
        require_at_their_places(pool)
        text = TOKENIZER.decode(tokens_of(pool), skip_special_tokens=True)
        assert text.endswith("tool\na <|image_pad|><image>\nassistant\n")
        assert len(talk_of(pool).images) == 2


def test_an_answer_with_more_pictures_than_are_left_ends_a_conversation(
    model: Path, tmp_path: Path, picture_row: dict[str, Any]
) -> None:
    with gallery_pool(tmp_path, model, picture_row, most=3) as pool:
        write(pool, 0, "two")
        write(pool, 1, "one")
        for text in ("one", "one"):
            write(pool, 1, text)
        ends = [talk_of(pool, response).ending for response in (0, 1)]
        assert ends == [None, "pictures"]
        assert [len(talk_of(pool, response).images) for response in (0, 1)] == [3, 3]
        # Its last turn is whole, and nothing follows.
        assert tokens_of(pool, 1)[-1] == END
        assert pool.turns is not None
        assert pool.turns.metrics([*pool.groups.values()])["turns/ended_pictures"] == 0.5
    with gallery_pool(tmp_path, model, picture_row, opens="two", most=2) as pool:
        assert [talk_of(pool, response).ending for response in (0, 1)] == ["failed", "failed"]
        assert pool.turns is not None
        assert pool.turns.taken_failures() == {
            "it begins with 3 pictures; data_config.images.max_per_prompt=2": 2
        }


def test_a_pool_of_a_checkpoint_goes_on_with_the_pictures_that_were_shown(
    model: Path, tmp_path: Path, picture_row: dict[str, Any]
) -> None:
    with (
        gallery_pool(tmp_path, model, picture_row, opens="one") as pool,
        gallery_pool(tmp_path, model, picture_row, opens="one") as later,
    ):
        for response in (0, 1):
            write(pool, response, "random")
        groups = tuple(pool.groups.values())
        state = PoolState(next_prompt=1, groups=groups).to_json()
        later.load(PoolState.of_json(json.loads(json.dumps(state))))
        listen(later)
        for each in (pool, later):
            write(each, 0, "random")
        for response in (0, 1):
            assert talk_of(pool, response) == talk_of(later, response)
            assert tokens_of(pool, response) == tokens_of(later, response)
        require_at_their_places(later)
        ours, theirs = ([each.request(row) for row in each.incomplete()] for each in (pool, later))
        assert ours == theirs
        # Both samples began alike, and were shown other pictures.
        numbers = [[each.number for each in talk_of(pool, at).images] for at in (0, 1)]
        assert numbers[0][:2] == numbers[1][:2]
        assert numbers[0][2] != numbers[1][2]
        # The picture is part of what a replayed answer has to be.
        wrong = json.loads(json.dumps(state).replace(talk_of(pool, 1).turns[0].answer, "0" * 64))
        later.load(PoolState.of_json(wrong))
        listen(later)
        assert later.turns is not None
        assert [*later.turns.failed_in_turn.values()]  # type: ignore[attr-defined]


def test_samples_show_each_picture_where_it_was_given(
    model: Path, tmp_path: Path, picture_row: dict[str, Any]
) -> None:
    with gallery_pool(tmp_path, model, picture_row, opens="one") as pool:
        write(pool, 0, "two")
        write(pool, 1, "random")
        numbers = [f"{each.number:016x}" for each in talk_of(pool).images]
        groups = pool.take([0])
        prompts, rollouts = pool.prompts_of(groups), pool.rollouts(1, groups)
        batch = RatedBatch(
            prompts=prompts,
            rollouts=rollouts,
            rewarded=pool.answering.rewards.by_rules(prompts, rollouts),
            conversations=pool.conversations(groups),
        )
        assert pool.turns is not None
        images = pool.turns.images  # type: ignore[attr-defined]
    (sample, _) = batch.samples([0, 1])
    assert [*sample.pictures] == numbers[:1]
    assert sample.conversation is not None
    assert sample.conversation.pictures == numbers[1:]
    RolloutFiles(tmp_path / "run/rollouts").write(1, batch, 1)
    stored = StoredRows(tmp_path / "run/rollouts")
    stored.update()
    rows = stored.rows(1, None)
    assert rows[0]["pictures"] == numbers[:1]
    pieces = rows[0]["conversation"]["pieces"]
    assert [each.get("pictures") for each in pieces] == [numbers[1:2], None, numbers[2:]]
    assert [each["text"] for each in pieces] == ["look", "two", "a <|image_pad|><image>"]
    # Samples of a prompt are one group, also if their pictures differ.
    assert prompt_key(rows[0]) == prompt_key(rows[1])
    names = [name for row in rows for piece in pieces for name in piece.get("pictures", ())]
    Thumbnails(images.folder, tmp_path / "run/pictures").write([*names, *numbers])
    assert thumbnails_of(tmp_path / "run", rows).keys() == {*numbers}
    again = RolloutFiles(tmp_path / "run/rollouts").read(1).rollouts
    assert again.images() == rollouts.images()
