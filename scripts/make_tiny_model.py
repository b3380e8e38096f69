"""Make a small Qwen2 chat model that adds two-digit numbers, but hastily.

The model has a tokenizer, a chat template and about one million weights. A
short warm start teaches it three habits, as a web corpus would mix them:

- careful:  "7+8=15, 4+3+1=8, \\boxed{85}"   each column, with the carry
- careless: "7+8=15, 4+3=7, \\boxed{75}"     each column, the carry forgotten
- hasty:    "\\boxed{75}"                     no work, the carry forgotten

Haste is the commonest, so greedy answers are right about one time in three,
while the careful habit is there for reinforcement learning to find.

The questions come from train.jsonl of make_tiny_data.py. The same arguments
on the same machine always give the same weights. An output folder that was
made by the same recipe is left alone.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import tokenizers
import torch
import transformers
from rich.progress import Progress
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

# Shape letters: B sequences, T token positions, V vocabulary.

END_OF_TURN = "<|im_end|>"
PADDING = "<|endoftext|>"
SPECIAL_TOKENS = (PADDING, "<|im_start|>", END_OF_TURN)
WHOLE_WORDS = ("system", "user", "assistant", "\\boxed{", ", ")
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{%- endif -%}"
)
VOCABULARY_MULTIPLE = 64
IGNORED_LABEL = -100
RECIPE_FILE = "recipe.json"
Question = tuple[int, int]
QUESTION = re.compile(r"^(\d\d)\+(\d\d)=\?$")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """What the weights depend on, besides the seed and the questions."""

    careful_share: float = 0.25
    careless_share: float = 0.55
    """The rest of the answers are hasty."""
    batch_size: int = 48
    """Answers per step."""
    learning_rate: float = 3e-3
    warmup_steps: int = 20
    decay_steps: int = 250
    """The learning rate falls to a twentieth over this many steps, and stays."""
    max_steps: int = 600
    steps_per_check: int = 25
    held_out: int = 256
    """Questions that are measured and never learned from."""
    skill_target: float = 0.93
    """Share of held-out questions whose careful answer the model can follow to the end."""
    accuracy_band: tuple[float, float] = (0.20, 0.50)
    """Greedy held-out accuracy outside which training goes on, or the model is refused."""
    threads: int = 2

    def passes(self, check: "Check") -> bool:
        """Tell whether the model is hasty enough, and able enough, to stop."""
        low, high = self.accuracy_band
        return check.skill >= self.skill_target and low <= check.accuracy <= high


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """One measurement on the held-out questions."""

    step: int
    loss: float
    accuracy: float
    skill: float


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build a byte-level tokenizer: one token per byte, and a few whole words.

    Any text survives encoding and decoding.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate(alphabet)}
    backend = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS]
    )
    backend.add_tokens([AddedToken(text, normalized=False) for text in WHOLE_WORDS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=END_OF_TURN,
        pad_token=PADDING,
        model_max_length=256,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen2ForCausalLM:
    """Initialise the network from the seed: 4 layers, 4 query heads on 2 key-value heads."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=-(-len(tokenizer) // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE,
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        use_cache=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.08,
        dtype=torch.float32,
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return model


def careful_answer(left: int, right: int) -> str:
    """Add column by column, carrying.

    >>> careful_answer(47, 38)
    '7+8=15, 4+3+1=8, \\\\boxed{85}'
    """
    units = left % 10 + right % 10
    carry = units // 10
    tens = left // 10 + right // 10 + carry
    work = f"{left % 10}+{right % 10}={units}, {left // 10}+{right // 10}+{carry}={tens}"
    return f"{work}, \\boxed{{{left + right}}}"


def careless_answer(left: int, right: int) -> str:
    """Add column by column, forgetting the carry."""
    units = left % 10 + right % 10
    tens = left // 10 + right // 10
    work = f"{left % 10}+{right % 10}={units}, {left // 10}+{right // 10}={tens}"
    return f"{work}, {hasty_answer(left, right)}"


def hasty_answer(left: int, right: int) -> str:
    """Answer at once, forgetting the carry."""
    return f"\\boxed{{{left // 10 + right // 10}{(left + right) % 10}}}"


def draw_answer(recipe: Recipe, rng: random.Random, left: int, right: int) -> str:
    """Answer a question by a habit drawn with the recipe's shares."""
    draw = rng.random()
    if draw < recipe.careful_share:
        return careful_answer(left, right)
    if draw < recipe.careful_share + recipe.careless_share:
        return careless_answer(left, right)
    return hasty_answer(left, right)


class Examples:
    """Turns questions and answers into padded batches of token ids."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        """Keep the tokenizer."""
        self.tokenizer = tokenizer

    def prompt(self, question: Question) -> list[int]:
        """Render one question up to the start of its answer."""
        messages = [{"role": "user", "content": f"{question[0]}+{question[1]}=?"}]
        text = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        return self.tokenizer.encode(text, add_special_tokens=False)

    def batch(
        self, questions: Sequence[Question], answers: Sequence[str]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return token ids and labels, both int64 [B, T]; only answers are labelled."""
        prompts = [self.prompt(question) for question in questions]
        tails = [
            [*self.tokenizer.encode(answer, add_special_tokens=False), self.tokenizer.eos_token_id]
            for answer in answers
        ]
        longest = max(len(p) + len(t) for p, t in zip(prompts, tails, strict=True))
        ids_BT = torch.full((len(prompts), longest), self.tokenizer.pad_token_id)
        labels_BT = torch.full((len(prompts), longest), IGNORED_LABEL)
        for row, (prompt, tail) in enumerate(zip(prompts, tails, strict=True)):
            end = len(prompt) + len(tail)
            ids_BT[row, :end] = torch.tensor(prompt + tail)
            labels_BT[row, len(prompt) : end] = torch.tensor(tail)
        return ids_BT, labels_BT


def read_questions(path: Path) -> list[Question]:
    """Read the operands of each question in a file of make_tiny_data.py.

    Raises:
        ValueError: A row is not one of its questions.
    """
    questions = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        content = json.loads(line)["messages"][-1]["content"]
        match = QUESTION.match(content)
        if match is None:
            raise ValueError(f"{path}:{number}: {content!r} is not a question like '12+35=?'")
        questions.append((int(match[1]), int(match[2])))
    return questions


@torch.no_grad()
def greedy_accuracy(
    model: Qwen2ForCausalLM, examples: Examples, questions: Sequence[Question]
) -> float:
    """Share of questions whose greedy answer boxes the right sum."""
    prompts_BT = torch.tensor([examples.prompt(question) for question in questions])
    output_BT = model.generate(
        prompts_BT, attention_mask=torch.ones_like(prompts_BT), max_new_tokens=32
    )
    texts = examples.tokenizer.batch_decode(
        output_BT[:, prompts_BT.shape[1] :], skip_special_tokens=True
    )
    right = [
        f"\\boxed{{{sum(question)}}}" in text
        for text, question in zip(texts, questions, strict=True)
    ]
    return sum(right) / len(right)


@torch.no_grad()
def careful_skill(
    model: Qwen2ForCausalLM, examples: Examples, questions: Sequence[Question]
) -> float:
    """Share of questions whose careful answer the model can follow to the end.

    Every token must be the likeliest one, save the two that choose the habit:
    the first, and the plus sign or equals sign after the tens.
    """
    answers = [careful_answer(*question) for question in questions]
    ids_BT, labels_BT = examples.batch(questions, answers)
    guesses_BT = model(input_ids=ids_BT).logits[:, :-1].argmax(dim=-1)
    targets_BT = labels_BT[:, 1:]
    wrong_BT = (guesses_BT != targets_BT) & (targets_BT != IGNORED_LABEL)
    plus = examples.tokenizer.encode("+", add_special_tokens=False)[0]
    answered_BT = targets_BT != IGNORED_LABEL
    first_BT = answered_BT & (answered_BT.cumsum(dim=-1) == 1)
    third_plus_BT = (targets_BT == plus) & ((targets_BT == plus).cumsum(dim=-1) == 3)
    free_BT = first_BT | third_plus_BT
    return (~(wrong_BT & ~free_BT).any(dim=-1)).float().mean().item()


def learning_rate(recipe: Recipe, step: int) -> float:
    """Rise linearly, then fall linearly to a twentieth."""
    rise = min(1.0, (step + 1) / recipe.warmup_steps)
    fall = 1.0 - 0.95 * min(1.0, step / recipe.decay_steps)
    return recipe.learning_rate * rise * fall


def build_optimizers(model: Qwen2ForCausalLM) -> list[torch.optim.Optimizer]:
    """Give the matrices inside the layers to Muon and the rest to AdamW.

    Muon needs half the steps here; the warm start has less than a minute.
    """
    inner = [p for name, p in model.named_parameters() if p.dim() > 1 and ".layers." in name]
    inner_ids = {id(p) for p in inner}
    outer = [p for p in model.parameters() if id(p) not in inner_ids]
    return [
        torch.optim.AdamW(outer, betas=(0.9, 0.98), weight_decay=0.01),
        torch.optim.Muon(inner, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
    ]


def accumulate_gradients(
    model: Qwen2ForCausalLM, batches: Sequence[tuple[torch.Tensor, torch.Tensor]]
) -> float:
    """Add the gradient of the mean loss over all labelled tokens, and return that loss."""
    counts = [int((labels_BT != IGNORED_LABEL).sum()) for _, labels_BT in batches]
    total = 0.0
    for (ids_BT, labels_BT), count in zip(batches, counts, strict=True):
        loss = model(input_ids=ids_BT, labels=labels_BT).loss * (count / sum(counts))
        loss.backward()
        total += loss.item()
    return total


def draw_batches(
    examples: Examples, questions: Sequence[Question], recipe: Recipe, rng: random.Random
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Draw one step of answers; short and long ones apart, to save padding."""
    pairs = [
        (question, draw_answer(recipe, rng, *question))
        for question in rng.sample(questions, recipe.batch_size)
    ]
    hasty = [pair for pair in pairs if pair[1].startswith("\\")]
    worked = [pair for pair in pairs if not pair[1].startswith("\\")]
    return [
        examples.batch([question for question, _ in part], [answer for _, answer in part])
        for part in (hasty, worked)
        if part
    ]


def warm_start(
    model: Qwen2ForCausalLM,
    examples: Examples,
    questions: Sequence[Question],
    recipe: Recipe,
    seed: int,
) -> Iterator[Check]:
    """Train until the held-out check passes, or to the last step; yield every check."""
    rng = random.Random(seed)
    shuffled = rng.sample(questions, len(questions))
    held_out, learned = shuffled[: recipe.held_out], shuffled[recipe.held_out :]
    optimizers = build_optimizers(model)
    for step in range(1, recipe.max_steps + 1):
        loss = accumulate_gradients(model, draw_batches(examples, learned, recipe, rng))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = learning_rate(recipe, step - 1)
            optimizer.step()
            optimizer.zero_grad()
        if step % recipe.steps_per_check:
            continue
        check = Check(
            step=step,
            loss=loss,
            accuracy=greedy_accuracy(model, examples, held_out),
            skill=careful_skill(model, examples, held_out),
        )
        yield check
        if recipe.passes(check):
            return


def recipe_record(options: argparse.Namespace, recipe: Recipe) -> dict[str, object]:
    """State everything the weights depend on, with one hash over all of it.

    Raises:
        OSError: The training file cannot be read.
    """
    record: dict[str, object] = {
        "seed": options.seed,
        "train_sha256": hashlib.sha256((options.data / "train.jsonl").read_bytes()).hexdigest(),
        "script_sha256": hashlib.sha256(Path(__file__).read_bytes()).hexdigest(),
        "versions": {
            module.__name__: module.__version__ for module in (torch, transformers, tokenizers)
        },
        "recipe": dataclasses.asdict(recipe),
    }
    text = json.dumps(record, sort_keys=True)
    return {"hash": hashlib.sha256(text.encode()).hexdigest(), **record}


def is_up_to_date(output: Path, record: dict[str, object]) -> bool:
    """Tell whether the folder was made by this recipe.

    Raises:
        ValueError: The folder holds something this script did not make.
    """
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return False
    try:
        found = json.loads((output / RECIPE_FILE).read_text())
    except (OSError, json.JSONDecodeError):
        raise ValueError(
            f"--output {output} has no readable {RECIPE_FILE}, so this script did not make it; "
            "name another folder or remove it"
        ) from None
    return bool(found["hash"] == record["hash"])


def swap_in(built: Path, output: Path) -> None:
    """Put the finished folder in place; whoever looks sees the old one or the new one."""
    retired = built.with_name(built.name + ".old")
    if output.exists():
        output.rename(retired)
    built.rename(output)
    shutil.rmtree(retired, ignore_errors=True)


def train_and_report(options: argparse.Namespace, recipe: Recipe, built: Path) -> Check:
    """Train, save the Hugging Face folder, and print each check.

    Raises:
        ValueError: The data are too few, or the model is outside the final bounds.
    """
    questions = read_questions(options.data / "train.jsonl")
    if len(questions) < 2 * recipe.held_out:
        raise ValueError(f"{len(questions)} questions; needed: at least {2 * recipe.held_out}")
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, options.seed)
    examples = Examples(tokenizer)
    started = time.monotonic()
    check = None
    with Progress(disable=not sys.stdout.isatty(), transient=True) as progress:
        task = progress.add_task("warm start", total=recipe.max_steps)
        for check in warm_start(model, examples, questions, recipe, options.seed):
            progress.update(task, completed=check.step)
            progress.console.print(
                f"step {check.step:3d}  {time.monotonic() - started:3.0f} s  "
                f"loss {check.loss:.3f}  greedy accuracy {check.accuracy:.3f}  "
                f"careful skill {check.skill:.3f}",
                highlight=False,
            )
    if check is None or not recipe.passes(check):
        raise ValueError(f"seed {options.seed} ended outside the bounds of the recipe: {check}")
    model.save_pretrained(built)
    tokenizer.save_pretrained(built)
    return check


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="model folder to write")
    parser.add_argument("--data", type=Path, required=True, help="folder of make_tiny_data.py")
    parser.add_argument("--seed", type=int, default=0, help="of weights and examples (default 0)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Make the model unless it is there, and return the exit status."""
    options = parse_arguments(arguments)
    recipe = Recipe()
    torch.set_num_threads(recipe.threads)
    torch.use_deterministic_algorithms(mode=True)
    try:
        record = recipe_record(options, recipe)
        if is_up_to_date(options.output, record):
            print(f"{options.output}: up to date")
            return 0
        options.output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=options.output.parent, prefix=".tiny-") as scratch:
            built = Path(scratch) / "model"
            check = train_and_report(options, recipe, built)
            record["result"] = dataclasses.asdict(check)
            (built / RECIPE_FILE).write_text(json.dumps(record, indent=2) + "\n")
            swap_in(built, options.output)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{options.output}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
