"""Natural mistakes with preferences, reward models and teachers, and the words that answer them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from new_user import NewUser, lines
from nightly import half_unless_night

PAIR = {"prompt": "1+1=?", "chosen": "2", "rejected": "12"}
OTHER = {"prompt": "2+2=?", "chosen": "4", "rejected": "14"}
LABELLED = {"prompt": "1+1=?", "completion": "2", "label": True}
ROW = {"messages": "1+1=?", "answer": "2"}
KTO = "preference_config.loss=kto"
DATA, TEST = "megatron_training.data_path", "megatron_training.test_data_path"
Given = Callable[[Path], list[str]]


@pytest.fixture
def user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tiny: Path
) -> NewUser:
    """Has a model, and files of pairs and of questions that are right."""
    shutil.copytree(tiny / "model", tmp_path / "model")
    lines(tmp_path / "data/pairs.jsonl", PAIR)
    lines(tmp_path / "data/test_pairs.jsonl", OTHER)
    lines(tmp_path / "data/train.jsonl", ROW)
    lines(tmp_path / "data/test.jsonl", ROW | {"messages": "2+2=?"})
    return NewUser(tmp_path, monkeypatch, capsys)


def rows(*made: object, keys: tuple[str, ...] = ()) -> Given:
    """Train on these rows."""

    def given(folder: Path) -> list[str]:
        lines(folder / "data/mine.jsonl", *made)
        return [f"{DATA}=data/mine.jsonl", *keys]

    return given


def keys(*given: str) -> Given:
    return lambda _: [*given]


def other_tokenizer(folder: Path) -> list[str]:
    shutil.copytree(folder / "model", folder / "teacher")
    file = folder / "teacher/tokenizer.json"
    file.write_text(file.read_text("utf-8").replace("<|im_end|>", "<|end|>"), "utf-8")
    return ["teacher_config.load=teacher"]


def no_weights(folder: Path) -> list[str]:
    shutil.copytree(folder / "model", folder / "reference")
    (folder / "reference/model.safetensors").unlink()
    return ["+ref_config.load=reference"]


OF_PAIRS: dict[str, tuple[Given, str]] = {
    "a pair of two equal answers": (
        rows(PAIR, {**OTHER, "rejected": "4"}),
        (
            "data/mine.jsonl:2: the chosen and the rejected answer are equal; a pair needs two "
            "different answers; remove the row"
        ),
    ),
    "a chosen answer without text": (
        rows({**PAIR, "chosen": ""}),
        (
            "data/mine.jsonl:1: column 'chosen' holds \"\"; needed an answer: text, not empty, or "
            "a number"
        ),
    ),
    "a pair without its other answer": (
        rows(PAIR, {"prompt": "1+2=?", "chosen": "3"}),
        (
            "data/mine.jsonl:2: no column preference_config.rejected_column='rejected'; found: "
            "prompt, chosen"
        ),
    ),
    "columns of other names": (
        rows({"prompt": "1+1=?", "accepted": "2", "rejected": "12"}),
        (
            "data/mine.jsonl:1: no column preference_config.chosen_column='chosen'; found: "
            "prompt, accepted, rejected"
        ),
    ),
    "a conversation as one text": (
        rows({"chosen": "Q: 1+1=? A: 2", "rejected": "12"}),
        (
            "data/mine.jsonl:1: no column megatron_training.prompt_column='prompt'; found: chosen, "
            "rejected"
        ),
    ),
    "pairs for a loss of labels": (
        rows(PAIR, keys=(KTO,)),
        (
            "data/mine.jsonl:1: no column preference_config.completion_column='completion'; "
            "found: prompt, chosen, rejected"
        ),
    ),
    "a label that is a number": (
        rows({**LABELLED, "label": 1}, keys=(KTO,)),
        "data/mine.jsonl:1: column 'label' holds 1; needed true or false",
    ),
    "a reference that is not there": (
        keys("+ref_config.load=models/base"),
        (
            "ref_config.load: model folder models/base does not exist; put it there with `hf "
            "download OWNER/base --local-dir models/base`, or write its name on the hub, OWNER/base"
        ),
    ),
    "a reference without weights": (
        no_weights,
        "ref_config.load: model folder reference has no .safetensors file",
    ),
    "a reference in spite of none": (
        keys("preference_config.reference_free=true", "preference_config.reference_file=ref.npz"),
        (
            "preference_config.reference_file=ref.npz has no effect with "
            "preference_config.reference_free=true: no model is compared with"
        ),
    ),
    "label smoothing of a hinge": (
        keys("preference_config.loss=hinge", "preference_config.label_smoothing=0.1"),
        (
            "preference_config.label_smoothing=0.1 needs preference_config.loss=sigmoid or "
            "sigmoid_norm, found hinge"
        ),
    ),
    "a rollout's temperature as beta": (
        keys("preference_config.beta=0"),
        "preference_config.beta=0 must be greater than 0",
    ),
    "a form of TRL that is not built": (
        keys("preference_config.loss=exo_pair"),
        (
            "preference_config.loss=\"exo_pair\" must be 'sigmoid', 'sigmoid_norm', 'ipo', "
            "'hinge', 'kto', 'bradley_terry', 'score' or 'steps'"
        ),
    ),
    "several samples of a row": (
        keys("rl_config.n_samples_per_prompt=4"),
        (
            "rl_config.n_samples_per_prompt=4: the run trains on the answers of the rows: rows "
            "have their answers; remove it"
        ),
    ),
    "adapters for a reward model": (
        keys("preference_config.loss=bradley_terry", "actor_config.lora.r=8"),
        (
            "actor_config.lora.r=8 must be 0 with preference_config.loss=bradley_terry: a reward "
            "model's head is trained whole"
        ),
    ),
    "a score that is text": (
        rows(
            {"prompt": "1+1=?", "completion": "2", "score": "good"},
            keys=("preference_config.loss=score",),
        ),
        "data/mine.jsonl:1: column 'score' holds \"good\"; needed a finite number",
    ),
    "a teacher for pairs": (
        keys("+teacher_config.load=model"),
        ("teacher_config is given: the run trains on the answers of the rows only; remove it"),
    ),
}
OF_TEACHERS: dict[str, tuple[Given, str]] = {
    "a teacher that is not there": (
        keys("teacher_config.load=models/teacher"),
        (
            "teacher_config.load: model folder models/teacher does not exist; put it there with "
            "`hf download OWNER/teacher --local-dir models/teacher`, or write its name on the hub, "
            "OWNER/teacher"
        ),
    ),
    "a teacher with another tokenizer": (
        other_tokenizer,
        (
            "teacher_config.load=teacher needs the tokenizer in model: '<|im_end|>' is token 258 "
            "of the policy, and None of the teacher; use a model of the policy's family"
        ),
    ),
    "an estimator of rewards with a weight of 0": (
        keys("teacher_config.load=model", "teacher_config.advantage_coef=0"),
        (
            "teacher_config.advantage_coef=0 gives the teacher no effect; use a weight above 0, or "
            "remove the section"
        ),
    ),
    "a divergence without candidates": (
        keys("teacher_config.load=model", "teacher_config.divergence=forward"),
        (
            "teacher_config.divergence=forward has no effect: with teacher_config.candidates=0 the "
            "signal is an advantage"
        ),
    ),
    "more candidates than tokens": (
        keys("teacher_config.load=model", "teacher_config.candidates=1000"),
        "teacher_config.candidates=1000 must be at most the policy's vocabulary of 320 tokens",
    ),
}


CHOSEN = half_unless_night(OF_PAIRS)


@pytest.mark.parametrize(("given", "words"), CHOSEN.values(), ids=CHOSEN)
def test_a_mistake_with_preferences_is_answered_in_one_line(
    given: Given, words: str, user: NewUser
) -> None:
    right = ["--config-name=dpo_tiny_cpu", "actor_config.load=model", f"{DATA}=data/pairs.jsonl"]
    right.append(f"{TEST}=data/test_pairs.jsonl")
    told = user.is_told([*right, *given(user.folder), "--dry-run"], program="train")
    assert told == [f"error: {words}"]


@pytest.mark.parametrize(("given", "words"), OF_TEACHERS.values(), ids=OF_TEACHERS)
def test_a_mistake_with_a_teacher_is_answered_in_one_line(
    given: Given, words: str, user: NewUser
) -> None:
    right = [
        "--config-name=distill_tiny_cpu",
        "actor_config.load=model",
        f"{DATA}=data/train.jsonl",
    ]
    right.append(f"{TEST}=data/test.jsonl")
    told = user.is_told([*right, *given(user.folder), "--dry-run"], program="train")
    assert told == [f"error: {words}"]
