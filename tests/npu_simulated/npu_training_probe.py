"""Functions that tests of training on simulated devices call in their processes."""

from training_messages import Case, Course, Updated
from training_probe import updates as updates_in_place

from mindrl.platform.device import PLATFORMS, configure_megatron


def updates(cases: list[Case], course: Course) -> list[Updated]:
    """Take one update per minibatch in each layout, of which MindSpeed is told where it is."""
    found = []
    for case in cases:
        configure_megatron(PLATFORMS["npu"], _settings(case))
        found += updates_in_place([case], course)
    return found


def _settings(case: Case) -> dict[str, object]:
    layout = case.layout
    return {
        "tensor_model_parallel_size": layout.tp,
        "pipeline_model_parallel_size": layout.pp,
        "expert_model_parallel_size": layout.ep,
        "expert_tensor_parallel_size": layout.etp,
        "sequence_parallel": case.sequence_parallel,
        "moe_grouped_gemm": False,
        "use_fused_rmsnorm": False,
        "use_fused_swiglu": False,
        "use_fused_rotary_pos_emb": False,
    }
