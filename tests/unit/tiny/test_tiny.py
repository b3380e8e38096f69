"""The tiny data set and the tiny model, short of its run, which the end-to-end tests make."""

import json
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from mindrl.checkpoint.any_family import read_any_description
from mindrl.checkpoint.files import check_files, tensor_shapes
from mindrl.config.megatron_training import MegatronTrainingConfig
from mindrl.config.rl import RLConfig
from mindrl.data.prompts import load_prompts
from mindrl.errors import ConfigError, DataError
from mindrl.models.description import read_description
from mindrl.tiny import recipe
from mindrl.tiny.arithmetic import (
    OPERANDS,
    Question,
    careful_answer,
    careless_answer,
    hasty_answer,
    parse_prompt,
)
from mindrl.tiny.chat_model import IGNORED_LABEL, build_model, encode_batch
from mindrl.tiny.making import Teacher, make_model, swap_in
from mindrl.tiny.questions import read_questions, write_questions
from mindrl.tiny.recipe import Family, Recipe, Skills, is_up_to_date, recipe_record

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "configs/sft_tiny_cpu.yaml"


def never(*_: object) -> Path:
    raise AssertionError("nothing is to be taught here")


def wrote(folder: Path, **asked: int) -> list[str]:
    return [*write_questions(folder, **({"seed": 1} | asked))]


def made(output: Path, data: Path) -> bool:
    return make_model(output, data, 1, Recipe(), Teacher(config=CONFIG, run=never))


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    wrote(folder)
    return folder


def operands(path: Path) -> list[tuple[int, int]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    pairs = [row["messages"][0]["content"].removesuffix("=?").split("+") for row in rows]
    return [(int(left), int(right)) for left, right in pairs]


def test_the_files_have_4096_and_256_right_answers_and_no_question_twice(data: Path) -> None:
    for name, count in (("train", 4096), ("test", 256)):
        path = data / f"{name}.jsonl"
        pairs = operands(path)
        answers = [int(json.loads(line)["answer"]) for line in path.read_text().splitlines()]
        assert len(set(pairs)) == count
        assert [sum(pair) for pair in pairs] == answers


def test_no_test_question_is_in_the_training_file_in_either_order(data: Path) -> None:
    train = {frozenset(pair) for pair in operands(data / "train.jsonl")}
    assert not train & {frozenset(pair) for pair in operands(data / "test.jsonl")}


def test_two_questions_in_three_carry_in_both_files(data: Path) -> None:
    for name, carries in (("train", 2731), ("test", 171)):
        pairs = operands(data / f"{name}.jsonl")
        assert sum(left % 10 + right % 10 >= 10 for left, right in pairs) == carries


def test_the_first_row_has_the_documented_form(data: Path) -> None:
    row = json.loads((data / "train.jsonl").read_text().splitlines()[0])
    (message,) = row["messages"]
    assert set(row) == {"messages", "answer"}
    assert set(message) == {"role", "content"}
    assert message["role"] == "user"


def test_equal_seeds_give_equal_bytes_and_other_seeds_others(data: Path, tmp_path: Path) -> None:
    for seed in (1, 2):
        wrote(tmp_path / str(seed), seed=seed)
    files = [folder / "test.jsonl" for folder in (data, tmp_path / "1", tmp_path / "2")]
    first, same, other = (file.read_bytes() for file in files)
    assert first == same
    assert first != other


def test_a_second_run_leaves_the_files_alone(tmp_path: Path) -> None:
    first = wrote(tmp_path, train=30, test=6)
    assert first[3] == f"{tmp_path}/test.jsonl: 6 rows, written"
    before = {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    assert wrote(tmp_path, train=30, test=6)[0] == f"{tmp_path}/train.jsonl: 30 rows, up to date"
    assert {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()} == before
    names = {f"{split}{kind}" for split in ("train", "test") for kind in ("", "_pairs", "_steps")}
    assert {file.stem for file in before} == names


def test_more_questions_than_there_are_additions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--train 9000 and --test 256 need 6000 and 171"):
        wrote(tmp_path, train=9000)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["make_tiny_data.py", "make_tiny_model.py"])
def test_help_is_printed_from_any_folder(scripts: Path, name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(scripts / name), "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "--output" in done.stdout
    assert "--seed" in done.stdout


def test_the_three_habits_answer_47_plus_38_as_documented() -> None:
    question = Question(47, 38)
    assert careful_answer(question) == "7+8=15, 4+3+1=8, \\boxed{85}"
    assert careless_answer(question) == "7+8=15, 4+3=7, \\boxed{75}"
    assert hasty_answer(question) == "\\boxed{75}"
    assert parse_prompt(question.prompt) == question


def test_careful_answers_are_always_right_and_the_others_only_without_a_carry() -> None:
    for left in OPERANDS:
        for right in OPERANDS:
            question = Question(left, right)
            right_box = f"\\boxed{{{left + right}}}"
            assert careful_answer(question).endswith(right_box)
            for habit in (careless_answer, hasty_answer):
                assert habit(question).endswith(right_box) == (left % 10 + right % 10 < 10)


@given(text=st.text(st.characters(max_codepoint=127)))
def test_ascii_text_survives_the_tokenizer(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_words_and_marks_are_one_token_each_and_other_letters_too(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    assert tokenizer.tokenize("<|im_start|>user") == ["<|im_start|>", "user"]
    assert tokenizer.tokenize("4, \\boxed{8}") == ["4", ", ", "\\boxed{", "8", "}"]
    assert len(tokenizer.encode("7+8=15, 4+3+1=8, \\boxed{85}")) == 19


def test_a_saved_tokenizer_loads_equal_by_the_model_family(
    tokenizer: PreTrainedTokenizerFast, tokenizer_folder: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tokenizer_folder, tmp_path / "model"))
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    loaded = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    text = "e\u0301 中文 don't, users \\boxed{12}<|im_end|>\n\n  12"
    assert loaded.encode(text) == tokenizer.encode(text)
    assert loaded.chat_template == tokenizer.chat_template


def test_an_answer_appended_to_its_prompt_is_the_rendered_chat(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    chat = [{"role": "user", "content": "1+1=?"}, {"role": "assistant", "content": "2"}]
    prompt = tokenizer.apply_chat_template(chat[:1], tokenize=False, add_generation_prompt=True)
    whole = tokenizer.apply_chat_template(chat, tokenize=False)
    assert prompt + "2<|im_end|>\n" == whole


def test_every_prompt_of_the_data_set_has_15_tokens(
    data: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    path = str(data / "train.jsonl")
    training = MegatronTrainingConfig(
        train_iters=1, global_batch_size=1, seq_length=32, data_path=path
    )
    rl = RLConfig(mini_batch_size=1, max_prompt_length=15)
    loaded = load_prompts(path, training, rl, tokenizer)
    assert Counter(len(prompt.token_ids) for prompt in loaded.prompts) == {15: 4096}


def test_the_model_has_1_067_136_weights_untied_with_2_key_value_heads(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    model = build_model(tokenizer, seed=1)
    assert sum(parameter.numel() for parameter in model.parameters()) == 1_067_136
    assert model.config.vocab_size == 320
    assert model.config.num_key_value_heads == 2
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_the_model_with_experts_has_1_856_896_weights_8_experts_a_layer_and_no_dense_layer(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    model = build_model(tokenizer, seed=1, family="qwen3_moe")
    assert sum(parameter.numel() for parameter in model.parameters()) == 1_856_896
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    model.save_pretrained(tmp_path)
    description = read_description(str(tmp_path))
    assert description.moe is not None
    assert description.moe.dense_layers == frozenset()
    # The names and shapes of published folders: one file entry for each matrix of an expert.
    check_files(str(tmp_path), description)
    experts = [name for name in tensor_shapes(str(tmp_path)) if ".experts." in name]
    assert len(experts) == 4 * 8 * 3
    assert "model.layers.3.mlp.experts.7.down_proj.weight" in experts


def test_the_model_with_gated_delta_nets_has_1_137_976_weights_and_one_layer_that_attends(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    model = build_model(tokenizer, seed=1, family="qwen3_5_text")
    assert sum(parameter.numel() for parameter in model.parameters()) == 1_137_976
    model.save_pretrained(tmp_path)
    assert read_any_description(str(tmp_path)).attention_layers == 1


def test_the_mixture_with_gated_delta_nets_has_as_many_experts_and_one_for_all_tokens(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    model = build_model(tokenizer, seed=1, family="qwen3_5_moe_text")
    # Of a layer: 9 experts of 3 x 128 x 128, 9 rows of router and gate; in place of 3 x 512 x 128.
    mixtures = 4 * ((9 * 3 * 128 + 9) - 3 * 512) * 128
    assert sum(parameter.numel() for parameter in model.parameters()) == 1_137_976 + mixtures
    model.save_pretrained(tmp_path)
    description = read_any_description(str(tmp_path))
    check_files(str(tmp_path), description)
    assert description.moe is not None
    assert (description.moe.num_experts, description.moe.num_experts_per_tok) == (8, 2)
    assert description.moe.dense_layers == frozenset()


@pytest.mark.parametrize("family", get_args(Family))
def test_equal_seeds_start_from_equal_weights(
    tokenizer: PreTrainedTokenizerFast, family: Family
) -> None:
    first, same, other = (build_model(tokenizer, seed, family).lm_head.weight for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_only_the_answer_and_its_end_are_learned(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    question = Question(12, 35)
    ids, labels = encode_batch(tokenizer, [question] * 2, ["4", "47, 7"])
    assert ids.shape == labels.shape == (2, 15 + 5)
    learned = [row[row != IGNORED_LABEL].tolist() for row in labels]
    assert [tokenizer.decode(row) for row in learned] == ["4<|im_end|>", "47, 7<|im_end|>"]
    assert torch.equal(ids[0, 15:17], labels[0, 15:17])


def test_the_habits_are_drawn_with_shares_of_25_55_and_20_percent() -> None:
    rng = random.Random(0)
    recipe = Recipe()
    drawn = Counter(recipe.draw_habit(rng).__name__ for _ in range(10_000))
    # Two hundredths are over four standard deviations of a share of 10,000 draws.
    assert drawn["careful_answer"] / 10_000 == pytest.approx(0.25, abs=0.02)
    assert drawn["careless_answer"] / 10_000 == pytest.approx(0.55, abs=0.02)
    assert drawn["hasty_answer"] / 10_000 == pytest.approx(0.20, abs=0.02)


def test_lessons_begin_with_more_careful_answers_and_no_update_has_a_question_twice(
    data: Path,
) -> None:
    questions = read_questions(data / "train.jsonl")
    recipe = Recipe(updates=30, early=2 / 3, answers_per_update=100)
    rows = list(recipe.lessons(questions, random.Random(0)))
    assert len(rows) == 30 * 100
    for first in range(0, 3000, 100):
        assert len({row["messages"] for row in rows[first : first + 100]}) == 100
    asked = [parse_prompt(row["messages"]) for row in rows]
    answers = [careful_answer(question) for question in asked]
    is_careful = [row["answer"] == answer for row, answer in zip(rows, answers, strict=True)]
    # Over three standard deviations of a share of 1000 draws.
    assert sum(is_careful[:2000]) / 2000 == pytest.approx(recipe.early_careful_share, abs=0.05)
    assert sum(is_careful[2000:]) / 1000 == pytest.approx(recipe.careful_share, abs=0.05)


def test_what_is_measured_is_never_learned_from(data: Path) -> None:
    questions = read_questions(data / "train.jsonl")
    held_out, learned = Recipe().dealt(questions, seed=1)
    assert len(held_out) == 256
    assert not {*held_out} & {*learned}
    assert {*held_out, *learned} == {*questions}


@pytest.mark.parametrize(
    ("accuracy", "skill", "passes"),
    [(0.35, 0.95, True), (0.19, 0.95, False), (0.51, 0.95, False), (0.35, 0.92, False)],
)
def test_a_model_passes_only_inside_its_bounds(accuracy: float, skill: float, passes: bool) -> None:
    skills = Skills(accuracy=accuracy, skill=skill)
    assert Recipe().passes(skills) == passes


@pytest.fixture
def model(data: Path, tmp_path: Path) -> Path:
    """A folder that looks made by the present recipe."""
    output = tmp_path / "model"
    output.mkdir()
    record = recipe_record(data, 1, Recipe(), CONFIG)
    (output / "recipe.json").write_text(json.dumps(record))
    return output


def test_a_model_of_the_same_recipe_is_left_alone(model: Path, data: Path) -> None:
    assert not made(model, data)
    assert [entry.name for entry in model.iterdir()] == ["recipe.json"]


def test_a_model_of_another_family_is_made_anew(model: Path, data: Path) -> None:
    qwen2, *others = (
        recipe_record(data, 1, Recipe(family=family), CONFIG) for family in get_args(Family)
    )
    assert is_up_to_date(model, qwen2)
    assert not any(is_up_to_date(model, other) for other in others)


def test_another_seed_is_another_recipe_and_so_are_other_questions(
    data: Path, tmp_path: Path
) -> None:
    wrote(tmp_path, seed=2)
    hashes = [
        recipe_record(folder, seed, Recipe(), CONFIG)["hash"]
        for folder, seed in ((data, 1), (data, 1), (data, 2), (tmp_path, 1))
    ]
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3


def test_a_change_of_any_file_that_decides_the_weights_is_another_recipe(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Path(recipe.__file__).parent
    files = [Path(shutil.copy(path, tmp_path)) for path in (*room.glob("*.py"), CONFIG)]
    monkeypatch.setattr(recipe, "__file__", str(tmp_path / "recipe.py"))

    def found() -> object:
        return recipe_record(data, 1, Recipe(), tmp_path / CONFIG.name)["hash"]

    hashes = [recipe_record(data, 1, Recipe(), CONFIG)["hash"]]
    for file in files:
        with file.open("a") as text:
            text.write("# changed\n")
        hashes.append(found())
    assert len(files) == 9
    assert len(set(hashes)) == 10


def test_a_folder_that_no_recipe_made_is_not_replaced(data: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("precious")
    with pytest.raises(ConfigError, match="it is no tiny model and is not replaced"):
        made(tmp_path, data)
    assert mine.read_text() == "precious"


def test_a_missing_data_folder_is_an_error_message(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none/train\.jsonl cannot be read: No such file"):
        made(tmp_path / "model", tmp_path / "none")


@pytest.mark.parametrize(
    ("prompt", "refusal"),
    [
        ("Why?", "train.jsonl:1: 'Why?' is not a question like '12+35=?'"),
        ("12+35=?", "train.jsonl has 1 questions; needed: at least 512"),
    ],
)
def test_a_data_set_of_another_kind_is_refused_and_nothing_is_left(
    tmp_path: Path, prompt: str, refusal: str
) -> None:
    row = {"messages": [{"role": "user", "content": prompt}]}
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=re.escape(refusal)):
        made(tmp_path / "model", tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["train.jsonl"]


def test_the_finished_folder_replaces_the_old_one_whole(tmp_path: Path) -> None:
    output, built = tmp_path / "model", tmp_path / "scratch" / "model"
    for folder, name in ((output, "old"), (built, "new")):
        folder.mkdir(parents=True)
        (folder / name).touch()
    swap_in(built, output)
    assert [entry.name for entry in output.iterdir()] == ["new"]
    assert list((tmp_path / "scratch").iterdir()) == []
