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
            model=settings.folder,
            dtype=settings.dtype,
            seed=settings.seed,
            tensor_parallel_size=settings.tensor_parallel_size,
            distributed_executor_backend="external_launcher" if alone else "mp",
            max_model_len=settings.longest,
            max_num_batched_tokens=max(settings.longest, 2048),
            max_num_seqs=32,
            gpu_memory_utilization=0.9,
            kv_cache_memory_bytes=settings.kv_cache_bytes,
            # Start faster, because a person waits.
            enforce_eager=True,
            trust_remote_code=settings.trust_remote_code,
            disable_log_stats=True,
            use_tqdm_on_load=False,
            **platform.engine_options,
        )

    def answers(self, token_ids: Sequence[int], asked: AnswerSampling) -> Generator[Piece]:
        """Answer a prompt: see `ChatEngine`."""
        engine, params = self.llm.llm_engine, self._params(asked)
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

    def _params(self, asked: AnswerSampling) -> SamplingParams:
        names = ("temperature", "top_p", "top_k", "min_p")
        given = {name: getattr(asked, name) for name in names}
        values = self.llm.llm_engine.model_config.get_diff_sampling_param()
        values |= {name: value for name, value in given.items() if value is not None}
        values |= {"max_tokens": asked.max_tokens, "stop_token_ids": [*asked.stop_token_ids]}
        if asked.stop:
            values |= {"stop": [*asked.stop], "include_stop_str_in_output": True}
        return SamplingParams(**values, n=asked.samples, output_kind=RequestOutputKind.DELTA)
