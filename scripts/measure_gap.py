"""Find the operators whose results differ between the rollout engine and a trainer, on CPU.

    python scripts/measure_gap.py --model .cache/tiny/model
    python scripts/measure_gap.py --model .cache/tiny/model --batch-invariant

The engine samples one response in float32, and the outputs of its layers are recorded. The trainer
(the engine `archon:`) then computes the same tokens. Each of its operators gets the engine's
inputs, so a difference is that of the operator alone. Prints one row per operator, summed over
layers, the first operator that differs, and the gap of the log-probs without the engine's inputs.
The model must be a dense one with the layers of Qwen2, Qwen3 or Llama.

Exit codes: 0 the log-probs are equal to the bit; 1 they differ; 2 wrong options.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from mindrl.batch.balance import MicroBatching
from mindrl.batch.sequences import Sequences
from mindrl.config.generate import GenerateConfig
from mindrl.config.megatron_training import MegatronTrainingConfig
from mindrl.config.role import LearningConfig
from mindrl.layouts.layout import TrainLayout
from mindrl.models.description import read_description
from mindrl.platform.attention import Packing, attention_kernel
from mindrl.platform.device import PLATFORMS, prepare_process
from mindrl.platform.device_engine import engine_options, make_batch_invariant
from mindrl.platform.environment import take_on
from mindrl.platform.rendezvous import Seat, join_process_group, listen
from mindrl.training.settings import EngineSettings

CPU = PLATFORMS["cpu"]
PRODUCTS = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "gate_proj": "gate"}
PRODUCTS |= {"up_proj": "up", "o_proj": "attention output", "down_proj": "feed-forward output"}
NORMS = {"input_layernorm": "first norm", "post_attention_layernorm": "second norm"}
NORMS |= {"q_norm": "query norm", "k_norm": "key norm"}


class Engine:
    """An engine that records the output of each operator for each token."""

    def __init__(self, folder: str, generate: GenerateConfig) -> None:
        """Start it with the weights of the folder."""
        from vllm import LLM  # noqa: PLC0415 - after the process is prepared

        from mindrl.rollout.vllm.options import rollout_options  # noqa: PLC0415

        options = rollout_options(folder, generate, CPU, 1) | {
            "load_format": "auto",
            "enforce_eager": True,
            "skip_tokenizer_init": True,
            "distributed_executor_backend": "external_launcher",
            "kv_cache_memory_bytes": 256 << 20,
            "gpu_memory_utilization": 0.01,
        }
        special = engine_options(CPU, batch_invariant=generate.batch_invariant)
        self.llm = LLM(**{**options, **special})
        self.recorded: dict[str, list[Tensor]] = defaultdict(list)

    def respond(self, prompt: Sequence[int], tokens: int) -> tuple[list[int], list[float]]:
        """Sample a response; return its tokens and their log-probs."""
        from vllm import SamplingParams, TokensPrompt  # noqa: PLC0415

        asked = SamplingParams(
            max_tokens=tokens, ignore_eos=True, logprobs=0, seed=1, detokenize=False
        )
        worker = self.llm.llm_engine.model_executor.driver_worker.worker
        self._hook(worker.model_runner.get_model())
        found = self.llm.generate([TokensPrompt(prompt_token_ids=[*prompt])], asked, use_tqdm=False)
        answer = found[0].outputs[0]
        pairs = zip(answer.token_ids, answer.logprobs, strict=True)
        return [*answer.token_ids], [entry[token].logprob for token, entry in pairs]

    def outputs(self, name: str) -> Tensor:
        """Return an operator's outputs for all tokens in their order, [S, ...]."""
        return torch.cat(self.recorded[name])

    def _hook(self, model: Any) -> None:
        for at, layer in enumerate(model.model.layers):
            for name, module in layer.named_modules():
                path = f"{at}.{name.rpartition('.')[2]}"
                if name == "self_attn.attn":
                    module.register_forward_pre_hook(partial(self._keep_heads, at))
                module.register_forward_hook(partial(self._keep, path))
        model.model.norm.register_forward_hook(partial(self._keep, "norm"))
        model.logits_processor.register_forward_hook(partial(self._keep, "logits"))

    def _keep(self, path: str, _: nn.Module, __: Any, made: Any) -> None:
        output = made[0] if isinstance(made, tuple) else made
        # Later operators write in place.
        self.recorded[path].append(output.detach().clone())

    def _keep_heads(self, at: int, _: nn.Module, given: tuple[Tensor, ...]) -> None:
        for name, each in zip(("turned query", "turned key"), given, strict=False):
            self.recorded[f"{at}.{name}"].append(each.detach().clone())


class Comparison:
    """Compares a trainer's operators with the engine's, and passes the engine's results on."""

    def __init__(self, engine: Engine, heads: tuple[int, int]) -> None:
        """Compare with what the engine has recorded; `heads` are of queries and of keys."""
        self.engine, self.heads = engine, heads
        self.rows: dict[str, list[float]] = {}
        """Elements that differ, elements, and the largest difference, of each operator."""
        self.layer, self.is_on = 0, False

    def replaced(self, operator: str, own: Tensor, theirs: Tensor) -> Tensor:
        """Record the difference; return the engine's result, with rows that it lacks."""
        flat, theirs = own.reshape(-1, theirs[0].numel()), theirs.flatten(1)
        # The engine never reads the last token that it sampled.
        common = len(theirs)
        difference = (flat[:common] - theirs).abs()
        row = self.rows.setdefault(operator, [0, 0, 0.0])
        row[0] += int(difference.count_nonzero())
        row[1] += difference.numel()
        row[2] = max(row[2], difference.max().item())
        return torch.cat((theirs, flat[common:])).view_as(own)

    def hook(self, network: Any) -> None:
        """Compare the modules of a network, and the inputs of some."""
        layers = network.layers
        for at, layer in enumerate(layers):
            for path, module in layer.named_modules():
                name = path.rpartition(".")[2]
                if name in PRODUCTS or name in NORMS:
                    module.register_forward_hook(partial(self._output, at, name))
                if name == "down_proj":
                    module.register_forward_pre_hook(partial(self._activation, at))
        network.model.norm.register_forward_hook(partial(self._output, None, "norm"))

    def attention(
        self, query: Tensor, key: Tensor, value: Tensor, packing: Packing, scale: float | None
    ) -> Tensor:
        """Compare rotary embedding and attention of the next layer: see `Kernel`."""
        if not self.is_on:
            return self.kernel(query, key, value, packing, scale)
        at, self.layer = self.layer, self.layer + 1
        outputs = self.engine.outputs
        query = self.replaced("rotary embedding", query, outputs(f"{at}.turned query"))
        key = self.replaced("rotary embedding", key, outputs(f"{at}.turned key"))
        mixed = self.kernel(query, key, value, packing, scale)
        return self.replaced("attention", mixed, outputs(f"{at}.attn"))

    def _output(self, at: int | None, name: str, _: nn.Module, __: Any, own: Tensor) -> Any:
        if not self.is_on:
            return None
        product = PRODUCTS.get(name)
        operator = f"{product} product" if product else NORMS.get(name, "last norm")
        return self.replaced(operator, own, self._theirs(at, name))

    def _theirs(self, at: int | None, name: str) -> Tensor:
        outputs = self.engine.outputs
        if at is None:
            return outputs(name)
        if name in ("gate_proj", "up_proj"):
            return outputs(f"{at}.gate_up_proj").chunk(2, -1)[name == "up_proj"]
        if name in ("q_proj", "k_proj", "v_proj"):
            merged, (queries, keys) = outputs(f"{at}.qkv_proj"), self.heads
            width = merged.size(-1) // (queries + 2 * keys)
            parts = merged.split([queries * width, keys * width, keys * width], -1)
            return parts[("q_proj", "k_proj", "v_proj").index(name)]
        return outputs(f"{at}.{name}")

    def _activation(self, at: int, _: nn.Module, given: tuple[Tensor, ...]) -> Any:
        if not self.is_on:
            return None
        return (self.replaced("activation", given[0], self.engine.outputs(f"{at}.act_fn")),)


def trainer_of(folder: str, comparison: Comparison, *, batch_invariant: bool) -> Any:
    """Build a trainer whose attention is compared."""
    from mindrl.training.archon.engine import ArchonEngine  # noqa: PLC0415
    from mindrl.training.archon.sharding import archon_sharding  # noqa: PLC0415

    comparison.kernel = attention_kernel("cpu", batch_invariant=batch_invariant)
    settings = EngineSettings(
        layout=TrainLayout(),
        training=MegatronTrainingConfig(
            train_iters=1, global_batch_size=1, seq_length=1, data_path="-", bf16=False
        ),
        learning=LearningConfig(),
        device_type="cpu",
        attention=comparison.attention,
        batch_invariant=batch_invariant,
    )
    model = read_description(folder)
    return ArchonEngine(
        folder, settings, (model, archon_sharding(model, TrainLayout(), dtype="float32"))
    )


def sequences_of(prompt: Sequence[int], response: Sequence[int]) -> Sequences:
    """Return a batch of one sequence."""
    tokens_1T = torch.tensor([[*prompt, *response]])
    return Sequences(
        tokens_BT=tokens_1T,
        lengths_B=torch.tensor([tokens_1T.numel()]),
        response_mask_BT=torch.arange(tokens_1T.numel())[None] >= len(prompt),
    )


def show(comparison: Comparison, gap_N: Tensor) -> None:
    """Print the operators, the first that differs, and the gap."""
    print(f"{'operator':<28}{'differing':>12}{'of':>12}{'largest difference':>22}")
    for operator, (differing, count, largest) in comparison.rows.items():
        print(f"{operator:<28}{differing:>12}{count:>12}{largest:>22.1e}")
    differing = [operator for operator, row in comparison.rows.items() if row[0]]
    print(f"first operator that differs: {differing[0] if differing else 'none'}")
    print(f"gap of {len(gap_N)} tokens: mean {gap_N.mean():.1e}, largest {gap_N.max():.1e}")


def parser() -> argparse.ArgumentParser:
    """Return the reader of the command line."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--model", required=True, help="folder of a dense model")
    made.add_argument("--prompt-tokens", type=int, default=24, help="random tokens of the prompt")
    made.add_argument("--response-tokens", type=int, default=40, help="sampled tokens")
    made.add_argument(
        "--batch-invariant", action="store_true", help="as generate_config.batch_invariant=true"
    )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Sample, compare, print, and return the exit code."""
    options = parser().parse_args(arguments)
    take_on(CPU.worker_environment(workers=1, one_machine=True))
    prepare_process(CPU, megatron=False)
    seat, listener = Seat(rank=0, world_size=1, local_device=0), listen("127.0.0.1")
    address = listener.getsockname()[:2]
    join_process_group(CPU, seat, address, timeout=timedelta(minutes=10), listener=listener)
    invariant, longest = options.batch_invariant, options.prompt_tokens + options.response_tokens
    if invariant:
        make_batch_invariant(CPU)
    generate = GenerateConfig(
        dtype="float32",
        max_model_len=longest,
        max_num_batched_tokens=max(longest, 2048),
        batch_invariant=invariant,
    )
    engine = Engine(options.model, generate)
    model = read_description(options.model)
    random = torch.Generator().manual_seed(1)
    prompt = torch.randint(model.vocab_size, (options.prompt_tokens,), generator=random).tolist()
    response, theirs = engine.respond(prompt, options.response_tokens)
    comparison = Comparison(engine, (model.num_attention_heads, model.num_key_value_heads))
    trainer = trainer_of(options.model, comparison, batch_invariant=invariant)
    network = next(iter(trainer.networks.values()))
    comparison.hook(network)
    sequences, theirs_N = sequences_of(prompt, response), torch.tensor(theirs)

    def own() -> Tensor:
        found = trainer.forward(sequences, MicroBatching(sequences=1))
        return found[0][0, len(prompt) :]

    gap_N = (own() - theirs_N).abs()
    comparison.is_on = True
    with_their_states_N = own()
    logits = engine.outputs("logits")[:, : model.vocab_size]
    states = engine.outputs("norm")[len(prompt) - 1 :]
    with torch.no_grad():
        product = functional.linear(states, network.head_weight()[: model.vocab_size])
    comparison.replaced("head product", product, logits)
    comparison.replaced("head and log-softmax", with_their_states_N[:, None], theirs_N[:, None])
    show(comparison, gap_N)
    return int(bool(gap_N.count_nonzero()))


if __name__ == "__main__":
    sys.exit(main())
