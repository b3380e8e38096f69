"""The tiny data set and the tiny model, short of its run, which the end-to-end tests make."""

import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from mindrl.checkpoint.files import check_files, tensor_shapes
from mindrl.config.megatron_training import MegatronTrainingConfig
from mindrl.config.rl import RLConfig
from mindrl.data.prompts import load_prompts
from mindrl.models.description import read_description


@pytest.fixture(scope="session")
def make_tiny_data(scripts: Path) -> ModuleType:
    assert scripts.is_dir()
    import make_tiny_data

    return sys.modules[make_tiny_data.__name__]


@pytest.fixture(scope="session")
def make_tiny_model(scripts: Path) -> ModuleType:
    assert scripts.is_dir()
    import make_tiny_model

    return sys.modules[make_tiny_model.__name__]


@pytest.fixture(scope="session")
def tiny_arithmetic(scripts: Path) -> ModuleType:
    assert scripts.is_dir()
    import tiny_arithmetic

    return sys.modules[tiny_arithmetic.__name__]


@pytest.fixture(scope="session")
def data(make_tiny_data: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    assert make_tiny_data.main(["--output", str(folder), "--seed", "1"]) == 0
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


def test_equal_seeds_give_equal_bytes_and_other_seeds_others(
    data: Path, make_tiny_data: ModuleType, tmp_path: Path
) -> None:
    for seed in ("1", "2"):
        make_tiny_data.main(["--output", str(tmp_path / seed), "--seed", seed])
    files = [folder / "test.jsonl" for folder in (data, tmp_path / "1", tmp_path / "2")]
    first, same, other = (file.read_bytes() for file in files)
    assert first == same
    assert first != other


def test_a_second_run_leaves_the_files_alone(
    make_tiny_data: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--output", str(tmp_path), "--train", "30", "--test", "6"]
    assert make_tiny_data.main(command) == 0
    before = {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    capsys.readouterr()
    assert make_tiny_data.main(command) == 0
    assert {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()} == before
    assert capsys.readouterr().out.count("up to date") == 2
    assert {file.name for file in before} == {"train.jsonl", "test.jsonl"}


def test_more_questions_than_there_are_additions_are_refused(
    make_tiny_data: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make_tiny_data.main(["--output", str(tmp_path), "--train", "9000"]) == 1
    assert "--train 9000 and --test 256 need 6000 and 171" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["make_tiny_data.py", "make_tiny_model.py"])
def test_help_is_printed_from_any_folder(scripts: Path, name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(scripts / name), "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "--output" in done.stdout
    assert "--seed" in done.stdout


def test_the_three_habits_answer_47_plus_38_as_documented(tiny_arithmetic: ModuleType) -> None:
    question = tiny_arithmetic.Question(47, 38)
    assert tiny_arithmetic.careful_answer(question) == "7+8=15, 4+3+1=8, \\boxed{85}"
    assert tiny_arithmetic.careless_answer(question) == "7+8=15, 4+3=7, \\boxed{75}"
    assert tiny_arithmetic.hasty_answer(question) == "\\boxed{75}"
    assert tiny_arithmetic.parse_prompt(question.prompt) == question


def test_careful_answers_are_always_right_and_the_others_only_without_a_carry(
    tiny_arithmetic: ModuleType,
) -> None:
    for left in tiny_arithmetic.OPERANDS:
        for right in tiny_arithmetic.OPERANDS:
            question = tiny_arithmetic.Question(left, right)
            right_box = f"\\boxed{{{left + right}}}"
            assert tiny_arithmetic.careful_answer(question).endswith(right_box)
            for habit in (tiny_arithmetic.careless_answer, tiny_arithmetic.hasty_answer):
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
    tiny_chat_model: ModuleType, tokenizer: PreTrainedTokenizerFast
) -> None:
    model = tiny_chat_model.build_model(tokenizer, seed=1)
    assert sum(parameter.numel() for parameter in model.parameters()) == 1_067_136
    assert model.config.vocab_size == 320
    assert model.config.num_key_value_heads == 2
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_the_model_with_experts_has_1_856_896_weights_8_experts_a_layer_and_no_dense_layer(
    tiny_chat_model: ModuleType, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    model = tiny_chat_model.build_model(tokenizer, seed=1, family="qwen3_moe")
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


@pytest.mark.parametrize("family", ["qwen2", "qwen3_moe"])
def test_equal_seeds_start_from_equal_weights(
    tiny_chat_model: ModuleType, tokenizer: PreTrainedTokenizerFast, family: str
) -> None:
    first, same, other = (
        tiny_chat_model.build_model(tokenizer, seed, family).lm_head.weight for seed in (1, 1, 2)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_only_the_answer_and_its_end_are_learned(
    tiny_chat_model: ModuleType,
    tiny_arithmetic: ModuleType,
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    question = tiny_arithmetic.Question(12, 35)
    ids, labels = tiny_chat_model.encode_batch(tokenizer, [question] * 2, ["4", "47, 7"])
    assert ids.shape == labels.shape == (2, 15 + 5)
    learned = [row[row != tiny_chat_model.IGNORED_LABEL].tolist() for row in labels]
    assert [tokenizer.decode(row) for row in learned] == ["4<|im_end|>", "47, 7<|im_end|>"]
    assert torch.equal(ids[0, 15:17], labels[0, 15:17])


def test_the_habits_are_drawn_with_shares_of_25_55_and_20_percent(
    make_tiny_model: ModuleType,
) -> None:
    rng = random.Random(0)
    recipe = make_tiny_model.Recipe()
    drawn = Counter(recipe.draw_habit(rng).__name__ for _ in range(10_000))
    # Two hundredths are over four standard deviations of a share of 10,000 draws.
    assert drawn["careful_answer"] / 10_000 == pytest.approx(0.25, abs=0.02)
    assert drawn["careless_answer"] / 10_000 == pytest.approx(0.55, abs=0.02)
    assert drawn["hasty_answer"] / 10_000 == pytest.approx(0.20, abs=0.02)


def test_lessons_begin_with_more_careful_answers_and_no_update_has_a_question_twice(
    make_tiny_model: ModuleType, tiny_arithmetic: ModuleType, data: Path
) -> None:
    questions = make_tiny_model.read_questions(data / "train.jsonl")
    recipe = make_tiny_model.Recipe(updates=30, early=2 / 3, answers_per_update=100)
    rows = list(recipe.lessons(questions, random.Random(0)))
    assert len(rows) == 30 * 100
    for first in range(0, 3000, 100):
        assert len({row["messages"] for row in rows[first : first + 100]}) == 100
    asked = [tiny_arithmetic.parse_prompt(row["messages"]) for row in rows]
    answers = [tiny_arithmetic.careful_answer(question) for question in asked]
    is_careful = [row["answer"] == answer for row, answer in zip(rows, answers, strict=True)]
    # Over three standard deviations of a share of 1000 draws.
    assert sum(is_careful[:2000]) / 2000 == pytest.approx(recipe.early_careful_share, abs=0.05)
    assert sum(is_careful[2000:]) / 1000 == pytest.approx(recipe.careful_share, abs=0.05)


def test_what_is_measured_is_never_learned_from(make_tiny_model: ModuleType, data: Path) -> None:
    questions = make_tiny_model.read_questions(data / "train.jsonl")
    held_out, learned = make_tiny_model.dealt(questions, make_tiny_model.Recipe(), seed=1)
    assert len(held_out) == 256
    assert not {*held_out} & {*learned}
    assert {*held_out, *learned} == {*questions}


@pytest.mark.parametrize(
    ("accuracy", "skill", "passes"),
    [(0.35, 0.95, True), (0.19, 0.95, False), (0.51, 0.95, False), (0.35, 0.92, False)],
)
def test_a_model_passes_only_inside_its_bounds(
    make_tiny_model: ModuleType, accuracy: float, skill: float, passes: bool
) -> None:
    check = make_tiny_model.Check(accuracy=accuracy, skill=skill)
    assert make_tiny_model.Recipe().passes(check) == passes


@pytest.fixture
def made_model(make_tiny_model: ModuleType, data: Path, tmp_path: Path) -> list[str]:
    """A folder that looks made by the present recipe; the command that would make it."""
    output = tmp_path / "model"
    output.mkdir()
    record = make_tiny_model.recipe_record(data, 1, make_tiny_model.Recipe())
    (output / "recipe.json").write_text(json.dumps(record))
    return ["--output", str(output), "--data", str(data), "--seed", "1"]


def test_a_model_of_the_same_recipe_is_left_alone(
    make_tiny_model: ModuleType, made_model: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert make_tiny_model.main(made_model) == 0
    assert "up to date" in capsys.readouterr().out


def test_a_model_of_another_family_is_made_anew(
    make_tiny_model: ModuleType, made_model: list[str]
) -> None:
    output, data = Path(made_model[1]), Path(made_model[3])
    records = {
        family: make_tiny_model.recipe_record(data, 1, make_tiny_model.Recipe(family=family))
        for family in ("qwen2", "qwen3_moe")
    }
    assert make_tiny_model.is_up_to_date(output, records["qwen2"])
    assert not make_tiny_model.is_up_to_date(output, records["qwen3_moe"])


def test_another_seed_is_another_recipe_and_so_are_other_questions(
    make_tiny_model: ModuleType, make_tiny_data: ModuleType, data: Path, tmp_path: Path
) -> None:
    make_tiny_data.main(["--output", str(tmp_path), "--seed", "2"])
    recipe = make_tiny_model.Recipe()
    hashes = [
        make_tiny_model.recipe_record(folder, seed, recipe)["hash"]
        for folder, seed in ((data, 1), (data, 1), (data, 2), (tmp_path, 1))
    ]
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3


def test_a_folder_that_the_script_did_not_make_is_not_replaced(
    make_tiny_model: ModuleType, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("precious")
    assert make_tiny_model.main(["--output", str(tmp_path), "--data", str(data)]) == 1
    assert "this script did not make it" in capsys.readouterr().err
    assert mine.read_text() == "precious"


def test_a_missing_data_folder_is_an_error_message(
    make_tiny_model: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--output", str(tmp_path / "model"), "--data", str(tmp_path / "none")]
    assert make_tiny_model.main(command) == 1
    assert "train.jsonl" in capsys.readouterr().err


def test_a_data_set_of_another_kind_is_named_by_line(
    make_tiny_model: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.jsonl").write_text('{"messages": [{"role": "user", "content": "Why?"}]}\n')
    command = ["--output", str(tmp_path / "model"), "--data", str(tmp_path)]
    assert make_tiny_model.main(command) == 1
    error = capsys.readouterr().err
    assert "train.jsonl:1: 'Why?' is not a question like '12+35=?'" in error
    assert [entry.name for entry in tmp_path.iterdir()] == ["train.jsonl"]


def test_the_finished_folder_replaces_the_old_one_whole(
    make_tiny_model: ModuleType, tmp_path: Path
) -> None:
    output, built = tmp_path / "model", tmp_path / "scratch" / "model"
    for folder, name in ((output, "old"), (built, "new")):
        folder.mkdir(parents=True)
        (folder / name).touch()
    make_tiny_model.swap_in(built, output)
    assert [entry.name for entry in output.iterdir()] == ["new"]
    assert list((tmp_path / "scratch").iterdir()) == []
