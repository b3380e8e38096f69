"""Ask a model or the model of a run: python cli/generate.py MODEL_OR_RUN [PROMPT]."""

from in_environment import start

if __name__ == "__main__":
    start("generate")
