"""Common fixtures: random model folders and configurations for them."""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from suite_order import Files, takes_long
from suite_parts import Part

from mindrl.config.load import load_run_config
from mindrl.config.run import RunConfig

if TYPE_CHECKING:
    from forked_workers import ForkedWorkers

Overrides = dict[str, Any]
ROOT = Path(__file__).parents[1]

# A busy machine may take longer than the 200 ms that an example has by default.
settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the tests."""
    parser.addoption("--write-tables", action="store_true", help="renew tables in the docs")
    parser.addoption("--part", type=Part.read, metavar="K/N", help="run the files of part K of N")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Files | None:
    """Return how tests are dealt out to processes; None for another way than by file."""
    return Files(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one part of the test files if one is requested; put those that take longest first."""
    if (part := config.getoption("--part")) is not None:
        kept = {*part.of(sorted({each.location[0] for each in items}))}
        config.hook.pytest_deselected(
            items=[each for each in items if each.location[0] not in kept]
        )
        items[:] = [each for each in items if each.location[0] in kept]
    items.sort(key=lambda item: not takes_long(item.location[0]))


@pytest.fixture(scope="session")
def configs() -> Path:
    """The folder of the shipped configurations."""
    return ROOT / "configs"


@pytest.fixture(scope="session")
def forked_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator["ForkedWorkers"]:
    """One zygote for all tests of several processes on the CPU.

    `MINDRL_TESTS_ZYGOTE` is the socket of one that runs already.
    """
    from forked_workers import ForkedWorkers, SharedWorkers

    if shared := os.environ.get("MINDRL_TESTS_ZYGOTE"):
        workers: ForkedWorkers = SharedWorkers(shared)
    else:
        workers = ForkedWorkers(tmp_path_factory.mktemp("zygote") / "log.txt")
    yield workers
    workers.stop()


@pytest.fixture(scope="session")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Path]:
    """Make a Qwen2 folder with random weights: 2 layers, 4 heads, 2 key-value heads, 96 tokens."""
    import torch
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

    made: dict[bool, Path] = {}

    def make(tied: bool) -> Path:
        if tied not in made:
            torch.manual_seed(7)
            config = Qwen2Config(
                vocab_size=96,
                hidden_size=128,
                intermediate_size=160,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=128,
                tie_word_embeddings=tied,
                # Wide, so that the most likely token leads by far more than rounding errors.
                initializer_range=0.15,
                bos_token_id=None,
                eos_token_id=1,
            )
            model = Qwen2ForCausalLM(config)
            for name, parameter in model.named_parameters():
                if name.endswith("bias"):
                    torch.nn.init.normal_(parameter, std=0.1)
            folder = tmp_path_factory.mktemp("tied" if tied else "untied")
            model.save_pretrained(folder)
            GenerationConfig(eos_token_id=1).save_pretrained(folder)
            made[tied] = folder
        return made[tied]

    return make


@pytest.fixture(scope="session")
def random_model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Create a folder with random weights of a family of `_FAMILY_VALUES`.

    4 layers, 4 heads of 32 (Mistral: of 48), 2 key-value heads, 211 tokens; 8 experts, 2 for
    each token.
    """
    made: dict[tuple[str, bool, float], Path] = {}

    def make(family: str, tied: bool = False, spread: float = 0.15) -> Path:
        # Wide, so that the most likely token leads by far more than rounding errors.
        if (family, tied, spread) not in made:
            folder = tmp_path_factory.mktemp(f"{family}-{'tied' if tied else 'untied'}")
            if family in ("qwen3_5", "qwen3_5_moe"):
                from nested_folders import nest

                nest(make(f"{family}_text", tied, spread), folder)
            else:
                _save_random_model(family, tied, spread, folder)
            made[family, tied, spread] = folder
        return made[family, tied, spread]

    return make


@pytest.fixture(scope="session")
def models(
    random_model_of: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Folders of the actor, of a critic and of a reward model, with their heads."""
    import torch
    from transformers import (
        AutoConfig,
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
    )

    plain = random_model_of("qwen3")
    folders = {"actor": str(plain)}
    heads: dict[str, Any] = {
        "critic": AutoModelForTokenClassification,
        "reward": AutoModelForSequenceClassification,
    }
    for seed, (role, classifier) in enumerate(heads.items()):
        torch.manual_seed(seed)
        config = AutoConfig.from_pretrained(plain)
        config.num_labels, config.token_classification_bias = 1, False
        model = classifier.from_pretrained(plain, config=config, dtype=torch.float32)
        torch.nn.init.normal_(model.score.weight, std=0.1)
        folders[role] = str(tmp_path_factory.mktemp(role))
        model.save_pretrained(folders[role])
    return folders


@pytest.fixture(scope="session")
def tiny_data() -> Path:
    """Create the quickstart's data unless they are up to date."""
    return _made("data")


@pytest.fixture(scope="session")
def tiny_model(tiny_data: Path) -> Path:
    """Create the quickstart's model unless it is up to date."""
    return _made("model", "--data", str(tiny_data))


def _made(name: str, *options: str) -> Path:
    folder = ROOT / ".cache/tiny" / name
    script = [f"scripts/make_tiny_{name}.py", "--output", str(folder), "--seed", "1"]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        # Another test program may be creating it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run([sys.executable, *script, *options], cwd=ROOT, check=True)
    return folder


# Three gated delta nets and a layer of full attention; the heads that vLLM has on a CPU.
_GATED_DELTA: dict[str, Any] = {
    "head_dim": 32,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
_THREE_POSITIONS: dict[str, Any] = {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}
_GATED_SHARED: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 96,
}
_FAMILY_VALUES: dict[str, dict[str, Any]] = {
    "llama": {
        # Of 16 frequencies one is kept, two are mixed and 13 are divided.
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10_000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    # All sequences of the tests fit into its window.
    "mistral": {"head_dim": 48, "sliding_window": 64},
    "phi3": {"pad_token_id": None},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "qwen3_linear": {
        "head_dim": 32,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0},
    },
    "qwen3_moe": {
        "head_dim": 32,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "norm_topk_prob": True,
    },
    # The first layer is dense; the bias chooses other experts than sigmoids alone, and 16 of 32
    # dimensions of a head are rotated.
    "glm4_moe": {
        "head_dim": 32,
        "attention_bias": True,
        "use_qk_norm": True,
        "moe_intermediate_size": 64,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "routed_scaling_factor": 1.5,
        "num_nextn_predict_layers": 0,
    },
    # mindrl has no network for either: biases everywhere, and partial rotary embeddings.
    "stablelm": {"partial_rotary_factor": 0.25, "use_qkv_bias": True, "hidden_dropout": 0.0},
    # Transformers has plans of how to cut these; norms of the second see heads of all ranks, and
    # the third vLLM has too.
    # The first does not learn to read token 7, but 113, which has that place on a second rank.
    "starcoder2": {"pad_token_id": 7},
    "olmo2": {"pad_token_id": None},
    "granite": {
        "attention_bias": True,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.5,
        "pad_token_id": None,
    },
    "qwen3_5_text": _GATED_DELTA | _THREE_POSITIONS,
    # Experts in each layer, one of them for all tokens and with a gate; in the first its layers of
    # linear attention have one matrix for queries, keys, values and their gate.
    "qwen3_next": _GATED_DELTA | _GATED_SHARED,
    "qwen3_5_moe_text": _GATED_DELTA | _THREE_POSITIONS | _GATED_SHARED,
    # mindrl has no network for it, but the tests have one: tests/own_models.
    "nemotron": {
        "attention_bias": True,
        "mlp_bias": True,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": 0.5,
        },
    },
}
"""Values of a family's config.json in addition to the common sizes."""


def _save_random_model(family: str, tied: bool, spread: float, folder: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    torch.manual_seed(7)
    config = AutoConfig.for_model(
        family.removesuffix("_linear"),
        vocab_size=211,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        initializer_range=spread,
        bos_token_id=None,
        eos_token_id=1,
        **_FAMILY_VALUES[family],
    )
    model = AutoModelForCausalLM.from_config(config)
    # The bias of a router's choice is a buffer.
    for name, parameter in (*model.named_parameters(), *model.named_buffers()):
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
        elif "norm" in name:
            # Around 1, or around 0 of a family that adds 1.
            torch.nn.init.normal_(parameter, mean=parameter.mean().item(), std=0.1)
        elif "conv1d" in name or ("layer_types" in _FAMILY_VALUES[family] and "embed" in name):
            # Of size 1, as the norms behind them make all: small ones would have large gradients.
            torch.nn.init.normal_(parameter, std=0.5)
        elif name.endswith("A_log"):
            # A state keeps some half of itself from token to token, not e^-8 of it.
            torch.nn.init.normal_(parameter, mean=-1.0, std=0.5)
    model.save_pretrained(folder)
    if family == "qwen3_moe":
        # As published folders say it; transformers 5 writes num_local_experts.
        config_file = folder / "config.json"
        values = json.loads(config_file.read_text("utf-8"))
        config_file.write_text(json.dumps(values | {"num_experts": 8}), "utf-8")
    GenerationConfig(eos_token_id=1).save_pretrained(folder)


@pytest.fixture(scope="session")
def mixed_model(
    random_model_of: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A mixture whose expert weights do not add to 1 and whose second layer is dense."""
    import torch
    import transformers

    config = json.loads((random_model_of("qwen3_moe") / "config.json").read_text("utf-8"))
    config |= {"norm_topk_prob": False, "mlp_only_layers": [1]}
    torch.manual_seed(9)
    made = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**config))
    folder = tmp_path_factory.mktemp("mixed")
    made.save_pretrained(folder)
    # As published folders say it; transformers 5 writes num_local_experts.
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


@pytest.fixture(scope="session")
def run_config() -> Callable[..., RunConfig]:
    """Build the configuration of a small CPU run; overrides are dotted keys."""
    return make_run_config


def make_run_config(model: Path, overrides: Overrides | None = None) -> RunConfig:
    values: dict[str, dict[str, Any]] = {
        "megatron_training": {
            "train_iters": 3,
            "global_batch_size": 4,
            "seq_length": 64,
            "data_path": "unused.jsonl",
            "bf16": False,
        },
        "actor_config": {"load": str(model), "micro_batch_size": 4, "lr": 1e-3},
        "rl_config": {
            "device": "cpu",
            "actor_resource": {"num_npus": 1},
            "n_samples_per_prompt": 4,
            "mini_batch_size": 4,
            "max_prompt_length": 32,
        },
        "generate_config": {
            "dtype": "float32",
            "max_model_len": 64,
            "max_num_seqs": 64,
            "kv_cache_mib": 16,
            "sampling_config": {"max_tokens": 16},
        },
    }
    for key, value in (overrides or {}).items():
        *path, last = key.split(".")
        section = values
        for part in path:
            section = section.setdefault(part, {})
        section[last] = value
    return load_run_config(values)
