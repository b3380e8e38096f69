"""Serve a model with vLLM's server: python cli/serve.py MODEL_OR_RUN."""

from in_environment import start

if __name__ == "__main__":
    start("serve")
