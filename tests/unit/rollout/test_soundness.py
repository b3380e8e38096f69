"""What no engine can have drawn, by its first fault."""

from typing import Any

import pytest

from mindrl.batch.rollouts import Responses
from mindrl.rollout.soundness import unsound

# Two responses to requests for up to 3 tokens; of a vocabulary of 10.
SOUND: dict[str, Any] = {
    "token_ids": [[4, 1], [5, 6, 7]],
    "logprobs": [[-1.0, -0.5], [-2.0, -3.0, 0.0]],
    "finished": [True, False],
}


def found(*, whole: bool = True, most: tuple[int, ...] = (3, 3), **fields: Any) -> str:
    responses = Responses.of(**SOUND | fields)
    return unsound(responses, most, 10, are_whole=whole)


def test_sound_responses_have_no_fault_whole_or_not() -> None:
    assert found() == ""
    assert (
        found(token_ids=[[], [5]], logprobs=[[], [-1.0]], finished=[False] * 2, whole=False) == ""
    )
    assert unsound(Responses.of([], [], []), [], 10, are_whole=True) == ""


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"most": (3,)}, "2 responses to 1 requests"),
        ({"most": (3, 2)}, "3 tokens, where 2 were asked for"),
        ({"most": (3, 4)}, "a response was cut at 3 of 4 tokens"),
        ({"token_ids": [[4, 1], [5, 10, 7]]}, "token 10 is outside the vocabulary of 10"),
        ({"token_ids": [[], [5, 6, 7]], "logprobs": [[], [-1.0] * 3]}, "a response is empty"),
        ({"logprobs": [[-1.0, float("nan")], [-1.0] * 3]}, "a log-prob is nan"),
        ({"logprobs": [[-1.0, 0.25], [-1.0] * 3]}, "a log-prob is 0.25, above 0"),
    ],
)
def test_each_fault_is_said(fields: dict[str, Any], said: str) -> None:
    assert found(**fields) == said
