"""The classes of vLLM for the models that mindrl supports.

Given a class in place of a name, vLLM starts no process that imports all of its models.
"""

from importlib import import_module

from vllm import ModelRegistry
from vllm.model_executor.models.deepseek_v2 import DeepseekV2ForCausalLM, DeepseekV3ForCausalLM
from vllm.model_executor.models.glm4_moe import Glm4MoeForCausalLM
from vllm.model_executor.models.llama import LlamaForCausalLM
from vllm.model_executor.models.mistral import MistralForCausalLM
from vllm.model_executor.models.phi3 import Phi3ForCausalLM
from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM
from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM
from vllm.model_executor.models.qwen3_moe import Qwen3MoeForCausalLM

from mindrl.models.config_file import read_config

_CLASSES = (
    LlamaForCausalLM,
    MistralForCausalLM,
    Phi3ForCausalLM,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
    Qwen3MoeForCausalLM,
    DeepseekV2ForCausalLM,
    DeepseekV3ForCausalLM,
    Glm4MoeForCausalLM,
)
_WITH_PROCESSORS = {
    "Qwen3_5ForCausalLM": "qwen3_5",
    "Qwen3_5MoeForCausalLM": "qwen3_5",
    "Qwen3NextForCausalLM": "qwen3_next",
    "Qwen2_5_VLForConditionalGeneration": "qwen2_5_vl",
    "Qwen3VLForConditionalGeneration": "qwen3_vl",
}
"""Modules of vLLM by their class: they import image processors, which need torchvision."""


def register_models(folder: str) -> None:
    """Give vLLM the classes of the supported families, and of the folder's."""
    models = [*_CLASSES]
    for name in read_config(folder)[1].get("architectures") or ():
        if name in _WITH_PROCESSORS:
            module = import_module(f"vllm.model_executor.models.{_WITH_PROCESSORS[name]}")
            models.append(getattr(module, name))
    for model in models:
        ModelRegistry.register_model(model.__name__, model)
