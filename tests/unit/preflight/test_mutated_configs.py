"""Invalid configurations end each program with a message and exit code 2."""

import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from nightly import crossed, half_unless_night

from mindrl.programs.entry import start

SHIPPED = Path(__file__).parents[3] / "configs" / "grpo_qwen25_7b.yaml"
TEXT = SHIPPED.read_text("utf-8")
OURS = "defaults: [grpo_qwen25_7b, _self_]\n"
ANSWERS: dict[str, tuple[Callable[[], int], list[str]]] = {
    "check": (partial(start, "check"), ["--elsewhere"]),
    "plan": (partial(start, "plan"), ["memory"]),
    "dry run": (partial(start, "train-grpo"), ["--dry-run", "--elsewhere"]),
}


def actor(line: str) -> str:
    """Put a line at the head of the shipped run's `actor_config`."""
    return TEXT.replace("actor_config:\n", f"actor_config:\n  {line}\n")


MUTATIONS: dict[str, tuple[str | bytes, str]] = {
    "a tab": (TEXT.replace("\n  ", "\n\t", 1), "line 4: while scanning for the next token"),
    "a section twice": (f"{TEXT}\nrl_config: {{}}\n", "found duplicate key rl_config"),
    "a key twice": (actor("load: a\n  load: b"), "found duplicate key load"),
    "no colon": (TEXT.replace("actor_config:", "actor_config"), "could not find expected ':'"),
    "Latin-1": (f"{TEXT}# \xe9\n".encode("latin-1"), "the byte 0xe9 is not UTF-8"),
    "a zero byte": (f"{TEXT}\0", "unacceptable character #x0000"),
    "no defaults": ("defaults: null\n", "defaults=None must be a list of names"),
    "one default": ("defaults: ascend\n", "defaults=ascend must be a list of names"),
    "a mapping of defaults": ("defaults: {a: b}\n", "must be a list of names"),
    "a number among the defaults": ("defaults: [1]\n", "the entry 1 of defaults must be a name"),
    "two groups in an entry": ("defaults: [{a: b, c: d}]\n", "of defaults must be a name"),
    "a default that is not there": ("defaults: [nowhere]\n", "has no configuration nowhere"),
    "a file that includes itself": ("defaults: [mine]\n", "includes itself: mine -> mine"),
    "bytes": (actor("lr: !!binary aGVsbG8="), "actor_config.lr=b'hello' must be UTF-8 text"),
    "a set": (
        actor("lr: !!set {a, b}"),
        "actor_config.lr: it has the type set",
    ),
    "an object of Python": (actor("lr: !!python/name:os.system"), "could not determine"),
    "half a letter": (
        actor('load: "\\ud800"').replace("load: ./", "save: ./"),
        "must be UTF-8 text",
    ),
    "two documents": (f"{TEXT}---\na: 1\n", "expected a single document"),
    "a number": ("5\n", "must contain sections with keys, such as actor_config: {lr: 1e-6}"),
    "a list": ("[1, 2]\n", "must contain sections with keys"),
    "nothing": ("", "has no defaults list; add this first line: defaults: [mindrl_"),
    "a list that holds itself": (actor("lr: &a [*a]"), "is nested too deeply"),
    "anchors without limit": (
        f"{OURS}a: &a [{'x,' * 9}]\n"
        + "".join(f"{new}: &{new} [{f'*{old},' * 9}]\n" for old, new in pairwise("abcdef")),
        "its anchors expand to 672,",
    ),
    "a file without limit": (f"{OURS}# {'x' * (1 << 20)}\n", "is larger than 1 MiB"),
    "a variable that is not set": (
        actor("lr: ${oc.env:NOT_SET_HERE}"),
        "actor_config.lr: the environment variable NOT_SET_HERE is not set; set it, or give a",
    ),
    "a resolver that is not there": (
        actor("lr: ${nope:1}"),
        "actor_config.lr: ${nope:..} is an unknown resolver; use a known one, such as",
    ),
    "a resolver that fails": (
        actor("lr: ${oc.decode:'[1'}"),
        "actor_config.lr: a reference cannot be read; write it like ${actor_config.lr}",
    ),
    "a key that is a number": (actor("1: 1"), "actor_config.1 is not a configuration key"),
    "an anchor that is not there": (actor("lr: *a"), "found undefined alias 'a'"),
    "a reference to nothing": (
        actor("lr: ${nope}"),
        "actor_config.lr: ${nope} is not a key; write",
    ),
    "a reference to itself": (
        actor("lr: ${actor_config.lr}"),
        "actor_config.lr: it refers to itself",
    ),
    "half a reference": (actor("lr: ${"), "actor_config.lr: a reference cannot be read"),
    "a key that is null": (actor("null: 1"), "actor_config: a key is null; a key must be text"),
    "a key that is a list": (actor("? [a]\n  : 1"), "found unhashable key"),
    "a number of 5,000 digits": (actor(f"lr: 1{'0' * 5000}"), "Exceeds the limit"),
    "a number for a section": (f"{OURS}actor_config: 5\n", "actor_config=5 must be a section"),
    "a list for a section": (f"{OURS}rl_config: [5]\n", "rl_config=[5] must be a section"),
    "a section for a number": (f"{OURS}actor_config: {{lr: {{a: 1}}}}\n", "valid number"),
    "Hydra's section": (f"{OURS}hydra: 5\n", "hydra must be a section with keys"),
    "not a number": (f"{OURS}actor_config: {{lr: .nan}}\n", "actor_config.lr=NaN must be"),
    "endless": (f"{OURS}actor_config: {{lr: .inf}}\n", "actor_config.lr=Infinity must be"),
}


def ended(program: str, arguments: list[str], patch: pytest.MonkeyPatch, folder: Path) -> int:
    """Start a program in this process; an exception would be a traceback."""
    start, options = ANSWERS[program]
    patch.setattr(sys, "argv", [program, *options, *arguments])
    patch.setenv("HYDRA_FULL_ERROR", "1")
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        patch.setenv(name, "")
    patch.chdir(folder)
    return start()


@pytest.mark.parametrize(("program", "name"), crossed(ANSWERS, half_unless_night(MUTATIONS)))
def test_a_file_that_cannot_be_read_ends_in_words_with_its_name_and_code_2(
    program: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text, words = MUTATIONS[name]
    data = text.encode() if isinstance(text, str) else text
    (tmp_path / "mine.yaml").write_bytes(data)
    arguments = ["--config-dir", str(tmp_path), "--config-name", "mine"]
    assert ended(program, arguments, monkeypatch, tmp_path) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.startswith("error: ")
    assert len(error.splitlines()) <= 4


LONG = "x" * 300
MOST = "must be less than or equal to"
OVERRIDES = {
    "actor_config=[5]": "actor_config=[5] must be a section with keys",
    "rl_config.actor_resource=3": "rl_config.actor_resource=3 must be a section with keys",
    "rl_config.epochs.foo=3": "not a configuration key; rl_config.epochs has no keys below it",
    "actor_config.load=a=b": "cannot be read: it must be key=value",
    "actor_config.lr=[1": "cannot be read: it must be key=value",
    "actor_config.lr=${nope}": "actor_config.lr: ${nope} is not a key; write a full key",
    "actor_config.lr=${oc.env:NOT_SET_HERE}": "the environment variable NOT_SET_HERE is not set",
    "actor_config.lr@here=3": "@ is for config groups, but this is a key; write KEY=VALUE",
    "~actor_config.lr=3": "~actor_config.lr=3: its value is 1e-06; write ~actor_config.lr alone",
    "some/group=3": "some/group=3: unknown config group some/group; keys have dots",
    "rl_config.verifier_function=abc": 'verifier_function="abc" must be a list',
    "generate_config.kv_cache_mib=1000000000000000000": f"{MOST} 16777216",
    "generate_config.reshard_bucket_mib=1000000000000000000": f"{MOST} 16777216",
    "rl_config.device_memory_mib=1000000000000000000": f"{MOST} 16777216",
    "rl_config.actor_resource.num_npus=1000000000": f"{MOST} 65536",
    "rl_config.worker_start_timeout_seconds=100000000": f"{MOST} 604800",
    "rl_config.verifier_timeout=1e300": f"{MOST} 604800",
    "megatron_training.distributed_timeout_minutes=1000000": f"{MOST} 10080",
    "generate_config.sampling_config.temperature=1e18": f"{MOST} 2",
    "generate_config.sampling_config.temperature=0.001": "greater than or equal to 0.01",
    "actor_config.weight_decay=1e18": f"{MOST} 100",
    "rl_config.n_samples_per_prompt=1000000000": f"{MOST} 65536",
    "rl_config.verifier_weight=[1e18,0]": f"{MOST} 1000000",
    "megatron_training.seed=4294967296": "must be less than 4294967296",
    **{
        f"{key}={folder}{LONG}": "must be a path of at most 4000 bytes with names of at most 240"
        for key in ("actor_config.load", "actor_config.save", "megatron_training.data_path")
        for folder in ("", "/tmp/")
    },
    "critic_config.lr=1": "critic_config.lr is not in the configuration",
}


@pytest.mark.parametrize(
    ("program", "override"),
    crossed(ANSWERS, half_unless_night(OVERRIDES)),
    ids=lambda text: text[:50],
)
def test_an_override_of_a_wrong_kind_ends_in_one_line_and_code_2(
    program: str,
    override: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = OVERRIDES[override]
    arguments = ["--config-name", "grpo_qwen25_7b", override]
    assert ended(program, arguments, monkeypatch, tmp_path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


@pytest.mark.parametrize("program", ANSWERS)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--config-name", "grpo_qwen25_7"], "did you mean grpo_qwen25_7b, grpo_"),
        (["--config-name", "own/grpo_qwen25_7.yaml"], "did you mean grpo_qwen25_7b, grpo_"),
        (["--config-dir", "own", "--config-name", "mein"], "did you mean mine or in?"),
        (["--config-dir", "nowhere", "--config-name", "mine"], "nowhere: no such folder"),
        (["--config-name", LONG], "...xxx"),
        (["--config-dir", "own", "--config-name", "folder"], "folder.yaml is not a file"),
        (["--config-dir", "own", "--config-name", "in"], "folder.yaml is not a file"),
    ],
)
def test_a_name_that_is_not_there_is_answered_with_what_was_probably_meant(
    arguments: list[str],
    words: str,
    program: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.yaml").write_text(OURS)
    (tmp_path / "own" / "folder.yaml").mkdir()
    (tmp_path / "own" / "in.yaml").write_text("defaults: [folder, _self_]\n")
    assert ended(program, arguments, monkeypatch, tmp_path) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--config-dir", "--config-path", "-cp"])
def test_every_program_reads_the_same_file_of_ones_own_folder(
    option: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of a shipped name too: what `check` has judged is what is trained."""
    own = tmp_path / "own"
    own.mkdir()
    text = "defaults: [grpo_qwen25_32b, _self_]\nmegatron_training: {train_iters: 77}\n"
    (own / "grpo_qwen25_7b.yaml").write_text(text)
    arguments = [option, "own", "--config-name=grpo_qwen25_7b"]
    assert ended("dry run", arguments, monkeypatch, tmp_path) == 0
    assert "77" in capsys.readouterr().out
