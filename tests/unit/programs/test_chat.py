"""A conversation in the terminal, with a model whose answers are set by the test."""

import io
import json
import os
import signal
from argparse import ArgumentParser
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from mindrl.config.run import RunConfig
from mindrl.data.conversation import Conversation
from mindrl.errors import DataError
from mindrl.programs.chat import Chat
from mindrl.programs.chat_engine_options import chosen_chat_engine
from mindrl.programs.entry import start
from mindrl.programs.generate import PROGRAM
from mindrl.programs.generate import chat_of as asked_chat
from mindrl.rollout.chat_engine import AnswerSampling, ChatEngineSettings, Piece

HOSTILE = "\x1b]0;taken\x07 \x1b[2J\u202e"


@dataclass
class Writer:
    """Answers with what was written, in pieces of three characters."""

    tokenizer: PreTrainedTokenizerFast
    answer: str
    heard: list[str] = field(default_factory=list)
    asked: list[AnswerSampling] = field(default_factory=list)
    stops_at: int | None = None

    def answers(self, token_ids: Sequence[int], sampling: AnswerSampling) -> Generator[Piece]:
        self.heard.append(self.tokenizer.decode(token_ids))
        self.asked.append(sampling)
        for first in range(0, len(self.answer), 3):
            if first == self.stops_at:
                os.kill(os.getpid(), signal.SIGINT)
            for number in range(sampling.samples):
                yield Piece(answer=number, text=self.answer[first : first + 3])
        yield Piece(answer=sampling.samples - 1, text="", is_cut=True)

    def close(self) -> None:
        pass


def chat_of(
    tokenizer: PreTrainedTokenizerFast, *, plain: bool = False, samples: int = 1, longest: int = 100
) -> Chat:
    return Chat(
        conversation=Conversation(tokenizer=tokenizer, is_plain=plain, system=None),
        sampling=AnswerSampling(max_tokens=40, samples=samples),
        longest=longest,
    )


def talks(chat: Chat, writer: Writer, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    chat.talk(writer)


def test_the_model_hears_all_that_was_said_until_it_is_forgotten(
    tokenizer: PreTrainedTokenizerFast,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    writer = Writer(tokenizer, "fine")
    talks(chat_of(tokenizer), writer, monkeypatch, "one", "", "two", "/reset", "three")
    first, second, third = writer.heard
    messages = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "fine"}]
    messages += [{"role": "user", "content": "two"}]
    assert second == tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=False
    )
    assert "one" not in third
    assert len(first) == len(third) - len("three") + len("one")
    assert capsys.readouterr().out == "fine\nfine\nfine\n"


def test_plain_text_reaches_the_model_as_it_is(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tokenizer, "5.")
    talks(chat_of(tokenizer, plain=True), writer, monkeypatch, "2+3=", "4+4=")
    assert writer.heard == ["2+3=", "2+3=5.4+4="]


def test_an_answer_cannot_command_the_terminal(
    tokenizer: PreTrainedTokenizerFast, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = chat_of(tokenizer)
    assert chat.answer(Writer(tokenizer, HOSTILE), chat.add_question("?")) == HOSTILE
    shown = capsys.readouterr().out
    assert shown == "\\x1b]0;taken\\x07 \\x1b[2J\\u202e\n"


def test_several_answers_stand_one_below_the_other_and_a_cut_one_is_told(
    tokenizer: PreTrainedTokenizerFast, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = chat_of(tokenizer, samples=2)
    chat.answer(Writer(tokenizer, "seven"), chat.add_question("?"))
    said = capsys.readouterr()
    assert said.out == "--- answer 1 of 2\nseven\n--- answer 2 of 2\nseven\n"
    assert "cut off at 40 tokens (--max-tokens)" in said.err
    question = chat.add_question("?" * 40)
    room = chat.longest - len(question)
    assert room < chat.sampling.max_tokens
    chat.answer(Writer(tokenizer, "seven"), question)
    assert f"cut off at {room} tokens (--max-length)" in capsys.readouterr().err


def test_a_conversation_that_no_longer_fits_is_told_and_goes_on_behind_a_reset(
    tokenizer: PreTrainedTokenizerFast,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    writer, chat = Writer(tokenizer, "x" * 20), chat_of(tokenizer, longest=60)
    talks(chat, writer, monkeypatch, "a" * 15, "b" * 15, "/reset", "c" * 15)
    assert len(writer.heard) == 2
    assert all(writer_asked.max_tokens < 60 - 15 for writer_asked in writer.asked)
    said = " ".join(capsys.readouterr().err.split())
    assert "must have less than 60" in said
    assert "clear the conversation with /reset" in said
    with pytest.raises(DataError, match="not valid text"):
        chat_of(tokenizer).add_question("\ud800")


def test_ctrl_c_ends_an_answer_and_the_conversation_goes_on(
    tokenizer: PreTrainedTokenizerFast,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    writer = Writer(tokenizer, "abcdefghi", stops_at=3)
    talks(chat_of(tokenizer), writer, monkeypatch, "one", "two")
    said = capsys.readouterr()
    assert said.out == "abcdef\nabcdef\n"
    assert said.err.count("stopped") >= 2
    assert "abcdef" in writer.heard[1]


def test_what_cannot_be_asked_is_said_before_an_engine_starts(
    tmp_path: Path,
    tokenizer: PreTrainedTokenizerFast,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 64}')
    # The environment of an engine is not that of other tests.
    monkeypatch.setattr("mindrl.programs.generate.take_on", lambda _: None)
    for arguments, reason in {
        ("/nothing",): "has no config.json",
        (str(tmp_path), "--samples", "2"): "--samples 2 needs a PROMPT",
        (str(tmp_path), "1", "--samples", "2", "--temperature", "0"): "--temperature above 0",
        (str(tmp_path), "1", "--max-length", "65"): "the model's limit is 64 tokens",
        (str(tmp_path), "1" * 80): "must have less than 64",
    }.items():
        monkeypatch.setattr("sys.argv", ["generate.py", *arguments, "--device", "cpu"])
        assert start("generate") == 2, arguments
        said = " ".join(capsys.readouterr().err.split())
        assert reason in said, arguments
        # The length of a prompt is known after the tokenizer, which is slow to import.
        starts = f"starting the engine with {arguments[0]}; this takes"
        assert said.startswith(starts if reason.startswith("must have") else "error: "), arguments


def test_a_device_that_is_not_here_is_named_as_the_option_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 64}')
    monkeypatch.setattr("sys.argv", ["generate.py", str(tmp_path), "1", "--device", "npu"])
    assert start("generate") == 1
    assert " ".join(capsys.readouterr().err.split()) == (
        "error: --device npu: this machine has no such device; --device auto selects cpu"
    )


def test_more_answers_than_vllm_samples_are_refused_before_the_engine_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parser = PROGRAM.parser("generate")
    assert parser.parse_args(["model", "1", "--samples", "16384"]).samples == 16_384
    with pytest.raises(SystemExit):
        parser.parse_args(["model", "1", "--samples", "16385"])
    assert "--samples: 16385 must be 1 to 16384" in capsys.readouterr().err


def test_the_limit_of_a_model_with_pictures_is_that_of_its_decoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Qwen3-VL has no length at the top of its config.json."""
    monkeypatch.setattr("sys.argv", ["generate", str(tmp_path), "--device", "cpu"])
    options = PROGRAM.parse(PROGRAM.parser("generate"))
    for most, longest in ((64, 64), (262_144, 8192)):
        nested = {"model_type": "qwen3_vl", "text_config": {"max_position_embeddings": most}}
        (tmp_path / "config.json").write_text(json.dumps(nested))
        assert chosen_chat_engine(options)[3].longest == longest
    options.max_length = 100_000
    assert chosen_chat_engine(options)[3].longest == 100_000


def test_the_model_of_a_run_is_asked_as_the_run_draws(
    tokenizer_folder: Path, run_config: Callable[..., RunConfig]
) -> None:
    drawn = {"top_p": 0.9, "min_p": 0.05, "stop": ("\n\n",), "max_tokens": 7}
    keys = {f"generate_config.sampling_config.{name}": value for name, value in drawn.items()}
    parser = ArgumentParser()
    PROGRAM.add_options(parser)
    options = parser.parse_args(["run", "47+38=?", "--temperature", "0.5"])
    settings = ChatEngineSettings(
        folder=str(tokenizer_folder),
        dtype="float32",
        longest=64,
        tensor_parallel_size=1,
        kv_cache_bytes=None,
        trust_remote_code=False,
        seed=1,
    )
    asked = asked_chat(options, settings, run_config(tokenizer_folder, keys)).sampling
    assert (asked.temperature, asked.max_tokens, asked.stop) == (0.5, 7, ("\n\n",))
    assert asked.truncation is not None
    assert asked.truncation.truncation() == {"top_p": 0.9, "top_k": -1, "min_p": 0.05}
    # Of the model itself nothing is known but its own defaults.
    alone = asked_chat(options, settings, None).sampling
    assert (alone.truncation, alone.stop, alone.max_tokens) == (None, (), 1024)
