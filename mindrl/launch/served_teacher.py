"""The teacher of a run on a server, and a check that it has the policy's tokens."""

from pathlib import Path

from mindrl.config.megatron_training import PLAIN
from mindrl.data.tokenizer import load_tokenizer
from mindrl.errors import ConfigError
from mindrl.launch.engine_server import token_in
from mindrl.preflight.run_shardings import RunPlan
from mindrl.rollout.http.client import ServerClient
from mindrl.rollout.http.teacher import ServedTeacher

_COMPARED_TOKENS = 64
"""Number of tokens, spread over the vocabulary, that the server decodes."""


def served_teacher(plan: RunPlan) -> ServedTeacher | None:
    """Return the client of the teacher's server; None if the run has none.

    Raises:
        ConfigError: The server has another tokenizer, or its token cannot be read.
        AnswerError: The server returns something else than text.
        WorkerDiedError: The server does not answer.
    """
    section, rl = plan.config.teacher_config, plan.config.rl_config
    if section is None or section.url is None or not plan.config.learns:
        return None
    file = section.token_file
    token = "" if file is None else token_in(f"teacher_config.token_file={file}", Path(file))
    teacher = ServedTeacher(
        client=ServerClient(url=section.url, token=token, name="the teacher"),
        candidates=plan.candidates("teacher"),
        seconds=rl.worker_call_timeout_seconds,
    )
    trusts = plan.config.generate_config.trust_remote_code
    _check_tokenizer(teacher, plan.config.tokenizer_path, trusts=trusts)
    return teacher


def _check_tokenizer(teacher: ServedTeacher, folder: str, *, trusts: bool) -> None:
    own = load_tokenizer(folder, chat_template=PLAIN, trust_remote_code=trusts)
    tokens = [*range(0, len(own), max(1, len(own) // _COMPARED_TOKENS))]
    ours, theirs = own.decode(tokens), teacher.decoded(tokens)
    # Versions of transformers differ in the spaces that they put before punctuation.
    if "".join(ours.split()) != "".join(theirs.split()):
        raise ConfigError(
            f"teacher_config.url={teacher.client.url} needs the tokenizer in {folder}: the server "
            f"reads the tokens {tokens[:3]}.. as {theirs[:40]!r}, the policy as {ours[:40]!r}; "
            "serve a model of the policy's family"
        )
