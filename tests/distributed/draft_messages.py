"""What travels between the test of drafts and the process that it forks."""

from dataclasses import dataclass

from mindrl.batch.rollouts import Responses


@dataclass(frozen=True, kw_only=True)
class Drafted:
    """What an engine with drafts said."""

    weight_bytes: int
    """Bytes of the engine's weights, as it reports them and as it has them when awake."""
    answers: list[Responses]
    """To each question."""
    counts: list[dict[str, float]]
    """Steps and tokens of each answer."""
    in_rounds: Responses
    """To the last question, in rounds of 3 engine steps."""
    pairs: Responses
    """Many pairs of tokens behind one prompt."""
    pair_counts: dict[str, float]
    """Steps and tokens of the pairs."""
