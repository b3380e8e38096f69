"""Pass tokens to vLLM's output processor as an engine does, and print what our rounds returned.

Arguments: the folder of a tokenizer, and JSON: for each case texts, and tokens that would be drawn.
"""

import json
import sys
from typing import Any

from transformers import AutoTokenizer
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
from vllm.v1.engine.output_processor import OutputProcessor

from mindrl.config.generate import SamplingConfig
from mindrl.rollout.engine import Request, Sampling
from mindrl.rollout.vllm.rounds import Rounds


class Drawn:
    """Draws given tokens, one a step; what comes of them is vLLM's own."""

    def __init__(self, tokenizer: Any, token_ids: list[int]) -> None:
        self.processor = OutputProcessor(tokenizer, log_stats=False)
        self.left = [*token_ids]
        self.aborted: list[str] = []

    def add_request(self, name: str, prompt: Any, params: Any) -> None:
        request = EngineCoreRequest(
            *(name, prompt["prompt_token_ids"], None, params, None, 0.0, None, None, None),
            external_req_id=name,
        )
        self.processor.add_request(request, None, None, 0)

    def step(self) -> Any:
        names = [*self.processor.request_states]
        drawn = [EngineCoreOutput(names[0], [self.left.pop(0)])]
        found = self.processor.process_outputs(drawn)
        self.aborted += found.reqs_to_abort
        return found.request_outputs

    def abort_request(self, names: list[str]) -> None:
        """Forget a request that was not stopped."""
        self.processor.abort_requests(names, internal=True)
        self.step = list  # type: ignore[method-assign]


def taken(tokenizer: Any, stop: list[str], token_ids: list[int]) -> dict[str, Any]:
    """Draw these tokens for a request that the texts end; returns what the rounds have of it."""
    section = SamplingConfig(max_tokens=50, stop=tuple(stop))
    sampling = Sampling(section=section, stop_token_ids=(1,), is_greedy=True)
    engine = Drawn(tokenizer, token_ids)
    rounds = Rounds(engine, sampling)
    rounds.add([Request(token_ids=(5, 6), drawn=0, seed=1)])
    whole = rounds.advance(len(token_ids))
    answers = rounds.take_back()
    return {
        "whole": whole,
        "token_ids": answers.token_ids_N.tolist(),
        "finished": answers.finished_B.tolist(),
        "aborted": len(engine.aborted),
    }


loaded = AutoTokenizer.from_pretrained(sys.argv[1])
sys.stdout.write(json.dumps([taken(loaded, *case) for case in json.loads(sys.argv[2])]))
