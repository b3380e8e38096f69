"""Prompt a model, or the model of a run, on the command line: `mindrl generate`."""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from mindrl.config.backends import ROLLOUT_BACKEND
from mindrl.config.megatron_training import PLAIN
from mindrl.config.run import RunConfig
from mindrl.errors import ConfigError, DataError
from mindrl.observability.terminal import say
from mindrl.platform.device import Platform
from mindrl.platform.environment import take_on
from mindrl.programs.arguments import Program, count, not_negative
from mindrl.programs.chat_engine_options import add_chat_engine_options, chosen_chat_engine
from mindrl.programs.exits import output_kept_back
from mindrl.programs.train import require_packages
from mindrl.rollout.chat_engine import AnswerSampling, ChatEngine, ChatEngineSettings

if TYPE_CHECKING:
    from mindrl.programs.chat import Chat

_ANSWER = 1024
"""Default limit of an answer in tokens for a model without a run."""
_EXAMPLE = """\
examples:
  mindrl generate outputs/2026-11-22/09-00-00 "47+38=?"
  mindrl generate models/Qwen2.5-7B "Name three primes." --samples 4 --temperature 0.7
  mindrl generate models/Qwen2.5-7B - < question.txt
  mindrl generate outputs/2026-11-22/09-00-00

Without a prompt a conversation starts, up to the model's length: /reset clears it, Ctrl-C stops an
answer, Ctrl-D quits.
"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL_OR_RUN", help="folder of a model, or of a run")
    add("prompt", nargs="?", metavar="PROMPT", help="the prompt; - reads it from stdin")
    add("--system", metavar="TEXT", help="system prompt")
    add("--plain", action="store_true", help="use the text as the prompt, without chat template")
    add("--samples", type=_samples, default=1, metavar="N", help="answers (default: 1)")
    drawn = "0 selects the most likely token (default: the run's, or the model's own)"
    add("--temperature", type=not_negative, metavar="T", help=drawn)
    limit = "tokens of an answer (default: the run's, or 1024)"
    add("--max-tokens", type=count, metavar="N", help=limit)
    add_chat_engine_options(parser)


def _samples(text: str) -> int:
    """Parse a number of answers, at most those that vLLM samples for one request."""
    return count(text, most=16_384)


def _generate(options: argparse.Namespace) -> int:
    if options.samples > 1 and options.prompt is None:
        raise ConfigError(
            f"--samples {options.samples} needs a PROMPT: a conversation has one answer per turn"
        )
    if options.samples > 1 and options.temperature == 0:
        raise ConfigError(
            f"--samples {options.samples} needs a --temperature above 0; at 0 all answers are the "
            "same"
        )
    require_packages("an answer", ROLLOUT_BACKEND)
    _, config, platform, settings = chosen_chat_engine(options)
    say(f"starting the engine with {options.model}; this takes a minute or two", to_stderr=True)
    with _elapsed_time():
        engine, chat, question = _started(options, config, platform, settings)
    try:
        if question is None:
            chat.talk(engine)
        else:
            chat.answer(engine, question)
    finally:
        with output_kept_back():
            engine.close()
    return 0


@contextmanager
def _elapsed_time() -> Iterator[None]:
    """Show the elapsed time on a terminal during the start.

    The line is written to a copy of stderr, which `output_kept_back` does not redirect.
    """
    with os.fdopen(os.dup(2), "w") as terminal:
        console = Console(file=terminal)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        ) as shown:
            shown.add_task("starting", total=None)
            yield


def _started(
    options: argparse.Namespace,
    config: RunConfig | None,
    platform: Platform,
    settings: ChatEngineSettings,
) -> "tuple[ChatEngine, Chat, Sequence[int] | None]":
    """Start the engine; returns it with the conversation and the tokens of the prompt."""
    # vLLM, torch and the tokenizers read the environment when they are imported.
    take_on(platform.worker_environment(workers=1, one_machine=True))
    chat = chat_of(options, settings, config)
    prompt = sys.stdin.read().removesuffix("\n") if options.prompt == "-" else options.prompt
    question = None if prompt is None else chat.add_question(prompt)
    with output_kept_back():
        from mindrl.launch.chat_engine import start_chat_engine  # noqa: PLC0415

        return start_chat_engine(settings, platform), chat, question


def chat_of(
    options: argparse.Namespace, settings: ChatEngineSettings, config: RunConfig | None
) -> "Chat":
    """Return an empty conversation.

    Raises:
        ModelError: The tokenizer is missing, or lacks a chat template that is needed.
    """
    # Imported late: they load transformers.
    from mindrl.data.conversation import Conversation  # noqa: PLC0415
    from mindrl.data.tokenizer import load_tokenizer, stop_token_ids  # noqa: PLC0415
    from mindrl.programs.chat import Chat  # noqa: PLC0415

    training = config.megatron_training if config else None
    template = training.chat_template if training else None
    if options.plain:
        template = PLAIN
    tokenizer = load_tokenizer(
        settings.folder, chat_template=template, trust_remote_code=settings.trust_remote_code
    )
    drawn = config.generate_config.sampling_config if config else None
    temperature = options.temperature
    if temperature is None and drawn:
        temperature = drawn.temperature
    sampling = AnswerSampling(
        samples=options.samples,
        temperature=temperature,
        truncation=drawn,
        max_tokens=options.max_tokens or (drawn.max_tokens if drawn else _ANSWER),
        stop_token_ids=stop_token_ids(
            tokenizer, settings.folder, drawn.stop_token_ids if drawn else ()
        ),
        stop=drawn.stop if drawn else (),
    )
    is_plain = template == PLAIN
    system = training.system_prompt if training and not is_plain else None
    conversation = Conversation(
        tokenizer=tokenizer, is_plain=is_plain, system=options.system or system
    )
    return Chat(conversation=conversation, sampling=sampling, longest=settings.longest)


PROGRAM = Program(
    about="Ask a model with the rollout engine in this process. The model of a run answers as in "
    "its training: with its system prompt, sampling and maximum length.",
    examples=_EXAMPLE,
    add_options=_add_options,
    run=_generate,
    bad_input=(DataError,),
)
