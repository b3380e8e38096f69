"""Calls of a conversation as training sequences: each sampled token exactly once."""

from hypothesis import given
from hypothesis import strategies as st

from mindrl.agents.record import Call, Segment, segments_of

Ids = tuple[int, ...]


def called(prompt: Ids, drawn: Ids, step: int = 5, first: float = -1.0) -> Call:
    logprobs = tuple(first - at for at in range(len(drawn)))
    return Call(prompt_ids=prompt, token_ids=drawn, logprobs=logprobs, step=step, ending="stop")


def test_a_call_that_continues_is_in_the_segment_of_the_answer_before_it() -> None:
    calls = [called((1, 2), (3, 4)), called((1, 2, 3, 4, 9, 9), (5,), step=6, first=-0.5)]
    assert segments_of(calls) == (
        Segment(
            prompt_ids=(1, 2),
            token_ids=(3, 4, 9, 9, 5),
            written=(True, True, False, False, True),
            logprobs=(-1.0, -2.0, 0.0, 0.0, -0.5),
            steps=(5, 5, 5, 5, 6),
        ),
    )


def test_a_rewritten_history_begins_a_segment() -> None:
    found = segments_of([called((1, 2), (3,)), called((1, 7, 3, 9), (4,))])
    assert [(each.prompt_ids, each.token_ids) for each in found] == [
        ((1, 2), (3,)),
        ((1, 7, 3, 9), (4,)),
    ]


def test_calls_with_one_prompt_are_separate_and_each_is_continued_by_its_own_tokens() -> None:
    calls = [called((1,), (2,)), called((1,), (3,)), called((1, 3, 9), (4,)), called((1, 2), (5,))]
    found = segments_of(calls)
    assert [each.token_ids for each in found] == [(2, 5), (3, 9, 4)]


def test_a_second_continuation_of_one_answer_is_a_segment_with_that_answer_in_its_prompt() -> None:
    found = segments_of([called((1,), (2,)), called((1, 2, 8), (3,)), called((1, 2, 9), (4,))])
    assert [(each.prompt_ids, each.token_ids) for each in found] == [
        ((1,), (2, 8, 3)),
        ((1, 2, 9), (4,)),
    ]


def test_the_longest_segment_is_continued() -> None:
    calls = [called((1,), (2,)), called((1, 2), (3,)), called((1,), (2,)), called((1, 2, 3), (4,))]
    assert [each.token_ids for each in segments_of(calls)] == [(2, 3, 4), (2,)]
    # Of equally long ones, the first.
    calls = [called((1,), (2,)), called((1,), (2,)), called((1, 2), (3,))]
    assert [each.token_ids for each in segments_of(calls)] == [(2, 3), (2,)]


def test_an_answer_without_tokens_is_left_out() -> None:
    assert segments_of([called((1,), ())]) == ()


_IDS = st.lists(st.integers(0, 1), max_size=3).map(tuple)


@st.composite
def conversations(draw: st.DrawFn) -> list[Call]:
    """Calls with few different ids, whose prompts often continue earlier calls."""
    calls: list[Call] = []
    for number in range(draw(st.integers(0, 7))):
        earlier = draw(st.sampled_from([None, *calls]))
        before = () if earlier is None else (*earlier.prompt_ids, *earlier.token_ids)
        # Each log-prob stands for its token.
        drawn = draw(_IDS)
        calls.append(called((*before, *draw(_IDS)), drawn, number, first=-100.0 * (number + 1)))
    return calls


@given(conversations())
def test_each_sampled_token_is_in_exactly_one_place_after_exactly_its_prompt(
    calls: list[Call],
) -> None:
    segments = segments_of(calls)
    places = {}
    for segment in segments:
        columns = (segment.written, segment.logprobs, segment.steps)
        assert {len(each) for each in columns} == {len(segment.token_ids)}
        for at, logprob in enumerate(segment.logprobs):
            if segment.written[at]:
                assert logprob not in places
                places[logprob] = (segment, at)
    wanted = [(call, at) for call in calls for at in range(len(call.token_ids))]
    assert len(places) == len(wanted)
    for call, at in wanted:
        segment, place = places[call.logprobs[at]]
        whole = (*segment.prompt_ids, *segment.token_ids)
        end = len(segment.prompt_ids) + place
        assert whole[: end + 1] == (*call.prompt_ids, *call.token_ids[: at + 1])
        assert segment.steps[place] == call.step


@given(conversations())
def test_no_segment_begins_with_the_whole_of_an_earlier_one_that_ended_before_it(
    calls: list[Call],
) -> None:
    """A call begins a segment only if none can be continued."""
    for number, call in enumerate(calls):
        before, after = segments_of(calls[:number]), segments_of(calls[: number + 1])
        fits = [
            each
            for each in before
            if call.prompt_ids[: len(each.prompt_ids) + len(each.token_ids)]
            == (*each.prompt_ids, *each.token_ids)
        ]
        begins = bool(call.token_ids) and not fits
        assert len(after) == len(before) + begins
