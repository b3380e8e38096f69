"""What happens to the processes of a run, at which call, and the proof that it did."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DRIVER, WORKERS = "driver", ("worker 0", "worker 1")
PHASES: Mapping[str, tuple[str, str]] = {
    "data": ("driver", "mindrl.data.order:PromptOrder.indices"),
    "to rollout": ("worker", "mindrl.workers.weight_sync:WeightSync.reshard"),
    "prefill": ("worker", "mindrl.rollout.vllm.engine:VllmEngine.generate"),
    "decode": ("worker", "vllm.v1.engine.llm_engine:LLMEngine.step"),
    "from rollout": ("worker", "mindrl.workers.device_regions:RolloutRegion.offload"),
    "reward": ("driver", "mindrl.rewards.scorer:RewardScorer.score_parts"),
    "log-probs": ("worker", "mindrl.training.megatron.engine:MegatronEngine.forward"),
    "advantage": ("driver", "mindrl.algorithms.advantages:group_normalised_advantages"),
    "backward": ("worker", "torch.autograd:backward"),
    "reduce": ("worker", "torch.distributed.distributed_c10d:reduce_scatter_tensor"),
    "step": ("worker", "mindrl.training.megatron.training_state:TrainingState.step"),
    "write": ("worker", "mindrl.checkpoint.state_files:write_state"),
    "commit": ("driver", "mindrl.checkpoint.commits:Commits.commit"),
    "prune": ("driver", "mindrl.checkpoint.commits:Commits.prune"),
}
"""Of a step: who makes a call in it, and which."""
_WORKER = "mindrl.workers.actor_hybrid_worker:ActorHybridWorker"
CRITIC_PHASES: Mapping[str, tuple[str, str]] = {
    "values": ("worker", "mindrl.workers.actor_hybrid_worker:ActorHybridWorker.compute_values"),
    "critic's update": (
        "worker",
        "mindrl.workers.actor_hybrid_worker:ActorHybridWorker.update_critic",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """Something that happens once, before a process makes the so-and-so-many-th of its calls."""

    at: str
    caller: str
    call: int
    victim: str
    kind: str
    """A signal to the victim; or what the caller does, who then is the victim."""
    anew: bool = False
    """Only in a process that was started behind what happened before."""


def disturbance(phase: str, victim: str, kind: str, *, call: int = 3) -> Disturbance:
    """Let something happen to a process in a phase of the so-and-so-many-th step from its start."""
    where, at = {**PHASES, **CRITIC_PHASES}[phase]
    # Who is to be hurt makes the call, where calls of that kind are made.
    caller = victim if victim.startswith(where) else {"driver": DRIVER, "worker": WORKERS[1]}[where]
    calls = call * 12 if phase == "decode" else call
    return Disturbance(at=at, caller=caller, call=calls, victim=victim, kind=kind)


def environment(folder: Path, planned: Sequence[Disturbance]) -> dict[str, str]:
    """Return the environment of a program to which all of it happens, in this order."""
    folder.mkdir(parents=True)
    (folder / "disturbances.json").write_text(json.dumps([asdict(each) for each in planned]))
    paths = [str(HERE / "disturbed"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), "MINDRL_TEST_DISTURBED": str(folder)}


def witnesses(folder: Path) -> list[dict[str, Any]]:
    """Return what has happened, in its order."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("[0-9]*.json"))]
