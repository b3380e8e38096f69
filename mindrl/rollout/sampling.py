"""What a rollout engine is asked for beside the prompts."""

from dataclasses import dataclass

from mindrl.config.generate import SamplingConfig


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How responses are drawn."""

    section: SamplingConfig
    stop_token_ids: tuple[int, ...]
    """A response ends behind the first of these; it is part of the response."""
    samples_per_prompt: int = 1
    is_greedy: bool = False
    """Take the most likely token each time; of the section, `max_tokens` alone then counts."""
