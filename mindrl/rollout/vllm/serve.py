"""Start vLLM's server of the OpenAI API, with the options of its command line.

vLLM starts processes of its own by importing this module again: what they import of mindrl is the
patches of its package alone.
"""

import runpy

SERVER = "vllm.entrypoints.openai.api_server"

if __name__ == "__main__":
    runpy.run_module(SERVER, run_name="__main__")
