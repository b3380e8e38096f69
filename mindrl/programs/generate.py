"""Prompt a model, or the model of a run, on the command line: `mindrl generate`."""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from mindrl.config.megatron_training import PLAIN
from mindrl.config.run import RunConfig
from mindrl.errors import ConfigError, DataError
from mindrl.observability.terminal import say
from mindrl.platform.environment import take_on
from mindrl.programs.arguments import count, parser_of
from mindrl.programs.exits import exit_code, output_kept_back
from mindrl.programs.speaker_options import add_speaker_options, asked_speaker
from mindrl.programs.train import require_rollout_engine
from mindrl.rollout.speaking import AnswerDraw, Speaker, SpeakerSettings

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

Without a prompt a conversation begins, as far as it fits the model: /reset forgets it, Ctrl-C ends
an answer, Ctrl-D all.
"""


def generate(name: str = "mindrl generate") -> int:
    """Prompt the model named on the command line; returns the exit code."""
    options = _parser(name).parse_args()
    return exit_code(lambda: _generate(options), DataError)


def _parser(name: str) -> argparse.ArgumentParser:
    about = (
        "Ask a model with the engine that rolls out, in this process. The model of a run answers "
        "as in its training: its system prompt, sampling and longest answer."
    )
    parser = parser_of(name, about, _EXAMPLE)
    add = parser.add_argument
    add("model", metavar="MODEL_OR_RUN", help="folder of a model, or of a run")
    add("prompt", nargs="?", metavar="PROMPT", help="what to ask; - reads it from stdin")
    add("--system", metavar="TEXT", help="what the model is told first")
    add("--plain", action="store_true", help="give it the text as it is, without chat template")
    add("--samples", type=count, default=1, metavar="N", help="answers (default: 1)")
    drawn = "0 takes the most likely token (default: the run's, or the model's own)"
    add("--temperature", type=_not_negative, metavar="T", help=drawn)
    add("--max-tokens", type=count, metavar="N", help="of an answer (default: the run's, or 1024)")
    add_speaker_options(parser)
    return parser


def _not_negative(text: str) -> float:
    value = -1.0
    with suppress(ValueError):
        value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} must be 0 or more")
    return value


def _generate(options: argparse.Namespace) -> int:
    if options.samples > 1 and options.prompt is None:
        raise ConfigError(
            f"--samples {options.samples} needs a PROMPT: in a conversation one counts"
        )
    require_rollout_engine()
    say(f"starting the engine with {options.model}; this takes a minute or two", to_stderr=True)
    with _elapsed_time():
        speaker, chat, asked = _started(options)
    try:
        if asked is None:
            chat.talk(speaker)
        else:
            chat.answer(speaker, asked)
    finally:
        with output_kept_back():
            speaker.close()
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


def _started(options: argparse.Namespace) -> "tuple[Speaker, Chat, Sequence[int] | None]":
    """Start the engine; returns it with the conversation and the tokens of the prompt."""
    _, config, platform, settings = asked_speaker(options)
    # vLLM, torch and the tokenizers read the environment when they are imported.
    take_on(platform.worker_environment(workers=1, one_machine=True))
    chat = chat_of(options, settings, config)
    prompt = sys.stdin.read().removesuffix("\n") if options.prompt == "-" else options.prompt
    asked = None if prompt is None else chat.ask(prompt)
    with output_kept_back():
        from mindrl.launch.speaking import start_speaker  # noqa: PLC0415

        return start_speaker(settings, platform), chat, asked


def chat_of(
    options: argparse.Namespace, settings: SpeakerSettings, config: RunConfig | None
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
    asked = AnswerDraw(
        samples=options.samples,
        temperature=temperature,
        top_p=drawn.top_p if drawn else None,
        top_k=drawn.top_k if drawn else None,
        min_p=drawn.min_p if drawn else None,
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
    return Chat(conversation=conversation, asked=asked, longest=settings.longest)
