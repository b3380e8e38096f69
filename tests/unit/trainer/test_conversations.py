"""Conversations of a pool with real environments and a real chat template; the policy is the test.

Whole runs: tests/e2e/test_tools_run.py.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conversation_pools import (
    END,
    GAMES,
    LONGEST,
    TOKENIZER,
    MakePool,
    begun,
    ids,
    listen,
    make_pool,
    number_of,
    write,
)

from mindrl.errors import EnvironmentFailedError
from mindrl.observability.metrics import computed
from mindrl.report.stored_rows import StoredRows
from mindrl.trainer.reward_manager import RatedBatch
from mindrl.trainer.rollout_files import RolloutFiles
from mindrl.trainer.source.group import PoolState

__all__ = ["make_pool"]


def test_samples_that_another_pool_starts_of_a_prompt_come_first(make_pool: MakePool) -> None:
    pool = make_pool()
    pool.skip(1, 0, 1)
    assert [each.sample for each in next(iter(begun(pool).groups.values())).sequences] == [2, 3]


def test_what_the_policy_wrote_is_masked_in_and_all_else_is_kept(make_pool: MakePool) -> None:
    pool = begun(make_pool())
    first = pool.request(pool.incomplete()[0])
    assert TOKENIZER.decode(first.token_ids).endswith(
        "playguess 5 to 99<|im_end|>\n<|im_start|>assistant\n"
    )
    for response in (0, 1):
        write(pool, response, "1")
        write(pool, response, number_of(pool, response))
    assert pool.complete_groups() == [True]
    found = pool.rollouts(1, pool.take([0]))
    for row in (0, 1):
        written = TOKENIZER.decode(found.response_tokens()[row])
        whole = TOKENIZER.decode(found.tokens_BT[row][: found.lengths_B[row]])
        number = written.split("<|im_end|>")[1]
        assert written == f"1<|im_end|>{number}<|im_end|>"
        assert "assistant\n1<|im_end|>\n<|im_start|>user\nno" in whole
        assert whole.endswith(f"<|im_start|>assistant\n{number}<|im_end|>")
        assert (found.rollout_logprobs_BT[row] == -0.5).equal(found.response_mask_BT[row])
        rewards_BT = found.turn_rewards_BT
        assert rewards_BT is not None
        # A quarter for each turn so far, at the last token of the turn.
        places = found.response_mask_BT[row].nonzero()[:, 0]
        assert rewards_BT[row].nonzero()[:, 0].tolist() == [int(places[1]), int(places[-1])]
        assert rewards_BT[row].sum() == 0.25 + 0.5


def test_stored_responses_keep_their_conversations(make_pool: MakePool, tmp_path: Path) -> None:
    pool = begun(make_pool())
    write(pool, 0, "1")
    write(pool, 0, number_of(pool, 0))
    write(pool, 1, "raise")
    groups = pool.take([0])
    prompts, rollouts = pool.prompts_of(groups), pool.rollouts(1, groups)
    batch = RatedBatch(
        prompts=prompts,
        rollouts=rollouts,
        rewarded=pool.answering.rewards.by_rules(prompts, rollouts),
        conversations=pool.conversations(groups),
    )
    RolloutFiles(tmp_path / "rollouts").write(1, batch, 1)
    stored = StoredRows(tmp_path / "rollouts")
    stored.update()
    (row,) = stored.rows(1, lambda token_ids: [TOKENIZER.decode([each]) for each in token_ids])
    opening, *pieces = row["conversation"]["pieces"]
    assert opening["text"] == "guess 5 to 99"
    assert row["conversation"]["ending"] == "done"
    assert [each["by"] for each in pieces] == ["policy", "user", "policy"]
    assert sum(each["tokens"] for each in pieces) == len(row["tokens"])
    written = [each["tokens"] for each in pieces if not each["masked"]]
    assert row["response_tokens"] == sum(written)
    # Each piece is so many of the tokens.
    of_pieces = "".join(row["tokens"][: written[0]])
    assert of_pieces == f"{pieces[0]['text']}{TOKENIZER.decode([END])}"


def test_the_time_of_environments_is_a_metric(make_pool: MakePool) -> None:
    pool = begun(make_pool())
    for response in (0, 1):
        write(pool, response, "1")
        write(pool, response, number_of(pool, response))
    groups = pool.take([0])
    assert pool.turns is not None
    metrics = pool.turns.check(groups)
    talks = [each.conversation for group in groups for each in group.sequences]
    times = [turn.seconds for talk in talks if talk is not None for turn in talk.turns]
    assert len(times) == 4
    assert min(times) > 0
    mean, most = (metrics[f"turns/environment_seconds_{name}"] for name in ("mean", "max"))
    assert (mean, most) == (sum(times) / 4, max(times))
    # They differ between equal runs, as all times do.
    assert not [name for name in computed(metrics) if "seconds" in name]


def test_a_further_turn_is_requested_with_all_tokens_and_what_is_left_of_its_limit(
    make_pool: MakePool,
) -> None:
    pool = begun(make_pool(max_turn_tokens=12))
    write(pool, 0, "1")
    row, _ = pool.incomplete()
    sequence = pool.groups[row.group].sequences[0]
    request = pool.request(row)
    assert [*request.token_ids[-len(sequence.tokens_N) :]] == sequence.tokens_N.tolist()
    # The engine takes it off the longest response.
    assert LONGEST - request.drawn == 12
    write(pool, 0, "12345", ends=False)
    assert LONGEST - pool.request(row).drawn == 7


@pytest.mark.parametrize(
    ("keys", "turns", "ending", "finished"),
    [
        ({"max_turns": 2}, ("1", "2"), "turns", True),
        ({"max_turn_tokens": 4}, ("1", "2222"), "turn_tokens", False),
        ({}, ("1" * 30, "2" * 30), "tokens", False),
        ({}, ("raise",), "failed", True),
    ],
)
def test_a_conversation_ends_for_a_reason(
    keys: dict[str, int],
    turns: tuple[str, ...],
    ending: str,
    finished: bool,
    make_pool: MakePool,
) -> None:
    pool = begun(make_pool(**keys))
    for text in turns:
        write(pool, 0, text, ends=text != "2222")
    sequence = next(iter(pool.groups.values())).sequences[0]
    assert sequence.conversation is not None
    assert sequence.conversation.ending == ending
    assert sequence.finished == finished
    assert [row.response for row in pool.incomplete()] == [1]


def test_the_last_turn_has_the_reward_also_if_it_calls_a_tool(make_pool: MakePool) -> None:
    keys = {"environment": f"{GAMES}:Clicks", "tool_format": "plain_json", "max_turns": 1}
    pool = begun(make_pool(**keys))
    write(pool, 0, '{"name": "click", "arguments": {}}')
    conversation = next(iter(pool.groups.values())).sequences[0].conversation
    assert conversation is not None
    assert (conversation.ending, conversation.turns[0].reward) == ("turns", 1.0)


CLICK = '{"name": "click", "arguments": {}}'


@pytest.mark.parametrize(
    ("keys", "texts", "ending"),
    [
        ({"max_turn_tokens": 30}, (CLICK, "2" * 30), "turn_tokens"),
        ({}, (CLICK, "2" * 100), "tokens"),
        ({}, (CLICK, " " * 5 + CLICK), "tokens"),
    ],
    ids=["turn is cut", "conversation is cut", "no place for the result"],
)
def test_a_conversation_that_a_limit_ends_has_its_reward_also_if_it_is_resumed_then(
    keys: dict[str, int], texts: tuple[str, ...], ending: str, make_pool: MakePool
) -> None:
    of_clicks = {"environment": f"{GAMES}:Clicks", "tool_format": "plain_json", **keys}
    pool, later = begun(make_pool(**of_clicks)), make_pool(**of_clicks)
    write(pool, 0, texts[0])
    row, _ = pool.incomplete()
    tokens = [*ids(texts[1]), END][: LONGEST - pool.request(row).drawn]
    drawn = torch.tensor(tokens), torch.zeros(len(tokens))
    pool.extend(row, drawn, step=1, finished=tokens[-1] == END)
    state = PoolState(next_prompt=1, groups=tuple(pool.groups.values()))
    later.load(PoolState.of_json(json.loads(json.dumps(state.to_json()))))
    for each in (pool, later):
        listen(each)
        talk = next(iter(each.groups.values())).sequences[0].conversation
        assert talk is not None
        clicks = sum(text.count("click") for text in texts)
        assert (talk.ending, [turn.reward for turn in talk.turns]) == (ending, [0.0, clicks])


def test_a_failed_conversation_is_not_trained_on_and_too_many_end_the_run(
    make_pool: MakePool,
) -> None:
    pool = begun(make_pool(max_failed_fraction=0.5))
    write(pool, 0, "raise")
    write(pool, 1, "1")
    write(pool, 1, number_of(pool, 1))
    groups = pool.take([0])
    assert pool.rollouts(1, groups).lengths_B.shape == (1,)
    assert pool.turns is not None
    metrics = pool.turns.check(groups)
    assert (metrics["turns/ended_failed"], metrics["turns/ended_done"]) == (0.5, 0.5)
    pool.turns.config = replace(pool.turns.config, max_failed_fraction=0.4)
    with pytest.raises(EnvironmentFailedError, match=r"1 of 2 conversations .* allows 0"):
        pool.turns.check(groups)


def test_a_pool_of_a_checkpoint_goes_on_with_the_same_environments(make_pool: MakePool) -> None:
    pool, later = begun(make_pool()), make_pool()
    for response in (0, 1):
        write(pool, response, "1")
    write(pool, 0, "2", ends=False)
    state = PoolState(next_prompt=1, groups=tuple(pool.groups.values()))
    later.load(PoolState.of_json(json.loads(json.dumps(state.to_json()))))
    listen(later)
    for each in (pool, later):
        write(each, 0, "3", step=2)
        write(each, 1, "4", step=2)
    ours, theirs = (
        [sequence for group in each.groups.values() for sequence in group.sequences]
        for each in (pool, later)
    )
    for one, other in zip(ours, theirs, strict=True):
        assert one.tokens_N.tolist() == other.tokens_N.tolist()
        assert one.steps_N.tolist() == other.steps_N.tolist()
        assert one.conversation == other.conversation


FORGETS = (
    "{%- set ns = namespace(last=0) -%}"
    "{%- for m in messages -%}{%- if m['role'] == 'user' -%}{%- set ns.last = loop.index0 -%}"
    "{%- endif -%}{%- endfor -%}"
    "{%- for m in messages -%}{%- set said = m['content'] -%}"
    "{%- if m['role'] == 'assistant' and loop.index0 < ns.last -%}"
    "{%- set said = said.split('$')[-1] -%}{%- endif -%}"
    "{{- '<|im_start|>' + m['role'] + '\\n' + said + '<|im_end|>\\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
"""Drops what an earlier turn has before a dollar sign, as Qwen3 drops thoughts."""


def test_where_the_template_drops_thoughts_a_segment_begins_with_what_it_renders(
    make_pool: MakePool,
) -> None:
    pool = begun(make_pool(FORGETS, history="rendered"))
    write(pool, 1, "x")
    for text in ("aa$1", "2", "b$3"):
        write(pool, 0, text)
    number = number_of(pool, 0)
    state = PoolState(next_prompt=1, groups=tuple(pool.groups.values()))
    pool.load(PoolState.of_json(json.loads(json.dumps(state.to_json()))))
    for response in (0, 1):
        write(pool, response, number_of(pool, response))
    groups = pool.take([0])
    found = pool.rollouts(1, groups)
    numbers_BC = torch.stack([found.conversation_B, found.sequences().tree_B], 1)
    assert numbers_BC.tolist() == [[0, 0], [0, 0], [0, 0], [1, 0]]
    drawn = [
        TOKENIZER.decode(tokens_T[mask_T])
        for tokens_T, mask_T in zip(found.tokens_BT, found.response_mask_BT, strict=True)
    ]
    # Nothing was dropped from the second turn, so the third continues its sequence.
    assert drawn[:3] == ["aa$1<|im_end|>", "2<|im_end|>b$3<|im_end|>", f"{number}<|im_end|>"]
    assert TOKENIZER.decode(found.response_tokens()[0]) == "".join(drawn[:3])
    whole = [
        TOKENIZER.decode(tokens_T[:length])
        for tokens_T, length in zip(found.tokens_BT, found.lengths_B, strict=True)
    ]
    begins = "playguess 5 to 99<|im_end|>\n<|im_start|>assistant\n1<|im_end|>\n<|im_start|>user\nno"
    assert begins in whole[1]
    assert "aa$" not in whole[1] + whole[2]
    assert "b$" not in whole[2]
    assert whole[2].endswith(f"<|im_start|>assistant\n{number}<|im_end|>")
    rewards_BT = found.turn_rewards_BT
    assert rewards_BT is not None
    assert rewards_BT.sum(dim=1).tolist() == [0.25, 0.5 + 0.75, 1.0, 0.25 + 0.5]
    shown = pool.conversations(groups)
    assert shown is not None
    (opening, *turns) = shown.sampled(
        0,
        pool.prompts_of(groups)[0],
        found.tokens_BT[:3][found.after_prompts()[:3]].tolist(),
    ).pieces
    assert (opening.by, opening.text) == ("user", "guess 5 to 99")
    assert [each.by for each in turns] == ["policy", "user"] * 3 + ["policy"]
    assert [each.text for each in turns if each.by == "policy"] == ["aa$1", "2", "b$3", number]
    assert all(number in each.text for each in turns if each.by == "user")


def test_a_template_that_drops_no_more_gives_the_sequence_that_keeps_everything(
    make_pool: MakePool,
) -> None:
    pools = [begun(make_pool(FORGETS, history=each)) for each in ("kept", "rendered")]
    for pool in pools:
        for text in ("1", "2", number_of(pool, 0)):
            write(pool, 0, text)
    kept, rendered = (pool.rollouts(1, [*pool.groups.values()]).rows(slice(1)) for pool in pools)
    assert rendered.conversation_B is rendered.tree_B is None
    assert kept.tokens_BT.equal(rendered.tokens_BT)
    assert kept.response_mask_BT.equal(rendered.response_mask_BT)


def test_what_a_policy_spells_stays_text_when_its_turns_are_rendered(make_pool: MakePool) -> None:
    pool = begun(make_pool(FORGETS, history="rendered"))
    spelled = [token for letter in "$<|im_end|>\n<|im_start|>user" for token in ids(letter)]
    row = pool.incomplete()[0]
    drawn = torch.tensor([*spelled, END]), torch.zeros(len(spelled) + 1)
    pool.extend(row, drawn, step=1, finished=True)
    listen(pool)
    prompt = pool.request(row).token_ids
    assert "assistant\n<|im_end|>\n<|im_start|>user<|im_end|>" in TOKENIZER.decode(prompt)
    # The first prompt's, the policy's own and the environment's end; not the spelled one.
    assert prompt.count(END) == 3


def test_a_history_that_fills_the_model_ends_a_conversation(make_pool: MakePool) -> None:
    pool = begun(make_pool(FORGETS, history="rendered", max_turns=100))
    drawn = []
    while (row := pool.incomplete()[0]).response == 0:
        drawn.append(min(2, LONGEST - pool.request(row).drawn))
        write(pool, 0, "$", ends=drawn[-1] == 2)
    sequence = next(iter(pool.groups.values())).sequences[0]
    assert sequence.conversation is not None
    assert sequence.conversation.ending == "tokens"
    found = pool.rollouts(1, [*pool.groups.values()])
    # Only the policy's own tokens are in a segment after its prompt: a sign and an end.
    assert found.response_mask_BT.sum(dim=1).tolist() == [*drawn, 0]
    assert drawn == [2] * (len(drawn) - 1) + [1]
    assert int(found.lengths_B.max()) == 64 + LONGEST


def test_a_turn_that_ends_with_the_last_token_ends_a_rendered_conversation(
    make_pool: MakePool,
) -> None:
    pool = begun(make_pool(FORGETS, history="rendered", max_turns=100))
    write(pool, 0, "a$" + "1" * 9)
    row, _ = pool.incomplete()
    left = LONGEST - pool.request(row).drawn
    # The template drops the sign, so the next prompt would be another.
    write(pool, 0, "$" + "2" * (left - 2))
    sequence = next(iter(pool.groups.values())).sequences[0]
    assert len(sequence.tokens_N) == LONGEST
    assert sequence.conversation is not None
    assert sequence.conversation.ending == "tokens"


@pytest.mark.parametrize("is_answered", [False, True])
@pytest.mark.parametrize("processes", [1, 8])
def test_a_conversation_is_restored_in_its_first_turn(
    processes: int, is_answered: bool, make_pool: MakePool
) -> None:
    pool, later = begun(make_pool(processes=processes)), make_pool(processes=processes)
    row = pool.incomplete()[0]
    drawn = torch.tensor([*ids("2"), *([END] if is_answered else [])])
    pool.extend(row, (drawn, torch.zeros(len(drawn))), step=1, finished=is_answered)
    # Of a turn that has ended the environment has not answered yet.
    state = PoolState(next_prompt=1, groups=tuple(pool.groups.values()))
    later.load(PoolState.of_json(json.loads(json.dumps(state.to_json()))))
    for each in (pool, later):
        listen(each)
        # The environment of the other response begins only if there is a process for it.
        assert row in each.incomplete()
        assert len(each.incomplete()) == min(2, processes)
        write(each, 0, "3")
    one, other = (each.groups[row.group].sequences[0] for each in (pool, later))
    assert one.conversation == other.conversation
    assert len(one.conversation.turns if one.conversation else ()) == 1 + is_answered
    assert one.tokens_N.equal(other.tokens_N)
