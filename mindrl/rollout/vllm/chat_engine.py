"""A vLLM chat engine: a model with the weights of its folder, which streams its answers."""

from collections.abc import Generator, Sequence
from datetime import timedelta
from itertools import chain

import torch.distributed as dist
from vllm import LLM, SamplingParams, TokensPrompt
from vllm.sampling_params import RequestOutputKind

from mindrl.platform.device import Platform
from mindrl.platform.rendezvous import Seat, join_process_group, listen
from mindrl.rollout.chat_engine import AnswerSampling, ChatEngineSettings, Piece
from mindrl.rollout.parameters import answer_parameters
from mindrl.rollout.vllm.options import answer_options

_TIMEOUT = timedelta(minutes=10)
_NAME = "answer"


class VllmChatEngine:
    """An engine with the weights of a folder; see `ChatEngine`."""

    def __init__(self, settings: ChatEngineSettings, platform: Platform) -> None:
        """Start the engine in this process; vLLM starts processes for further ranks."""
        alone = settings.tensor_parallel_size == 1
        if alone:
            # vLLM would listen on all addresses of the machine.
            listener = listen("127.0.0.1")
            seat, address = Seat(rank=0, world_size=1, local_device=0), listener.getsockname()[:2]
            join_process_group(platform, seat, address, timeout=_TIMEOUT, listener=listener)
        self.llm = LLM(
            **answer_options(settings),
            distributed_executor_backend="external_launcher" if alone else "mp",
            max_num_seqs=32,
            gpu_memory_utilization=0.9,
            # Start faster, because a person waits.
            enforce_eager=True,
            disable_log_stats=True,
            use_tqdm_on_load=False,
            **platform.engine_options,
        )

    def answers(self, token_ids: Sequence[int], sampling: AnswerSampling) -> Generator[Piece]:
        """Answer a prompt: see `ChatEngine`."""
        engine, params = self.llm.llm_engine, self._params(sampling)
        engine.add_request(_NAME, TokensPrompt(prompt_token_ids=[*token_ids]), params)
        try:
            while engine.has_unfinished_requests():
                drawn = chain.from_iterable(output.outputs for output in engine.step())
                yield from (
                    Piece(answer=each.index, text=each.text, is_cut=each.finish_reason == "length")
                    for each in drawn
                )
        finally:
            if engine.has_unfinished_requests():
                engine.abort_request([_NAME])
                # The model runner drops it in the next step.
                engine.step()

    def close(self) -> None:
        """Shut down the engine and its process group."""
        self.llm.llm_engine.engine_core.shutdown()
        if dist.is_initialized():
            dist.destroy_process_group()

    def _params(self, sampling: AnswerSampling) -> SamplingParams:
        of_model = self.llm.llm_engine.model_config.get_diff_sampling_param()
        values = of_model | answer_parameters(sampling)
        return SamplingParams(**values, output_kind=RequestOutputKind.DELTA)
