"""The engine that answers a person, in this process. Imported in a process of its own only."""

from mindrl.errors import ModelError
from mindrl.platform.device import Platform, prepare_process
from mindrl.rollout.speaking import Speaker, SpeakerSettings


def start_speaker(settings: SpeakerSettings, platform: Platform) -> Speaker:
    """Start it with the weights of a folder; the environment is that of a worker.

    Raises:
        ModelError: It does not start.
    """
    prepare_process(platform, megatron=False)
    from mindrl.rollout.vllm.speaker import VllmSpeaker  # noqa: PLC0415

    try:
        return VllmSpeaker(settings, platform)
    except Exception as error:
        # vLLM and torch raise errors of many kinds for what a folder or a device may lack.
        raise ModelError(f"the engine does not start with {settings.folder}: {error}") from error
