"""vLLM's server for the folder of a model, with OpenAI's protocol."""

from mindrl.platform.device import Platform
from mindrl.rollout.chat_engine import ChatEngineSettings
from mindrl.rollout.vllm.options import answer_options, command_of


def model_server_command(
    settings: ChatEngineSettings, name: str, address: tuple[str, int]
) -> list[str]:
    """Return the command of a server for the model `name`; the token is in its environment."""
    host, port = address
    of_server = {"served_model_name": name, "host": host, "port": port}
    return command_of(answer_options(settings) | of_server)


def model_server_environment(platform: Platform, token: str) -> dict[str, str]:
    """Return the variables that the server's process needs in addition to its environment.

    The token is not in the command, which every user of the machine can see.
    """
    environment = platform.worker_environment(workers=1, one_machine=True)
    return environment | {"VLLM_API_KEY": token}
