"""Decide which runs fork their workers, and which modules the prefork server imports."""

from mindrl.cluster.prefork import PreforkServer
from mindrl.config.run import RunConfig
from mindrl.platform.device import Platform
from mindrl.platform.environment import ray_address

_WORKER = ("mindrl.launch.worker",)
_TRAINS = {
    "megatron": ("mindrl.training.megatron.parallel", "mindrl.training.megatron.engine"),
    "archon": ("mindrl.training.archon.engine",),
    "fsdp": ("mindrl.training.fsdp.engine",),
}
_ROLLS_OUT = ("mindrl.rollout.vllm.engine",)


def start_prefork(config: RunConfig, platform: Platform) -> PreforkServer | None:
    """Start the imports for the workers of a checked run; None if each worker imports itself.

    That is the case with workers on other machines, or on devices that do not support forking.
    """
    if not platform.forks_workers or ray_address() is not None:
        return None
    backends = {config.training_backend(role) for role in config.roles}
    modules = [*_WORKER, *(name for each in sorted(backends) for name in _TRAINS[each])]
    if config.rolls_out:
        modules += _ROLLS_OUT
        if own := platform.engine_options.get("worker_cls"):
            modules.append(str(own).rpartition(".")[0])
    environment = platform.worker_environment(
        workers=config.devices,
        one_machine=True,
        deterministic=config.megatron_training.is_deterministic,
    )
    return PreforkServer(platform.kind, modules, environment, megatron="megatron" in backends)
