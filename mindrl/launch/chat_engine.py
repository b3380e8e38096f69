"""Start a chat engine in this process. Import only in a separate process."""

from mindrl.errors import ModelError
from mindrl.platform.device import Platform, prepare_process
from mindrl.rollout.chat_engine import ChatEngine, ChatEngineSettings


def start_chat_engine(settings: ChatEngineSettings, platform: Platform) -> ChatEngine:
    """Start an engine with the weights of a folder, in the environment of a worker.

    Raises:
        ModelError: The engine does not start.
    """
    prepare_process(platform, megatron=False)
    from mindrl.rollout.vllm.chat_engine import VllmChatEngine  # noqa: PLC0415

    try:
        return VllmChatEngine(settings, platform)
    except Exception as error:
        # vLLM and torch raise many kinds of errors for defects of a folder or a device.
        raise ModelError(f"the engine cannot start with {settings.folder}: {error}") from error
