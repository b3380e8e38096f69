r"""A tiny model that sometimes calls a calculator: the tiny model, taught three more habits.

- tool:     <tool_call>{"name": "add", ...}</tool_call>, then the result as "\boxed{85}"
- careless and hasty: as in `arithmetic`, with the carry forgotten

Reinforcement learning has the tool's habit to find, which is always right.
"""

import dataclasses
import json
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from mindrl.config.section_types import SectionArguments
from mindrl.errors import ModelError
from mindrl.observability.terminal import say
from mindrl.tiny.arithmetic import Question, boxed, careless_answer, hasty_answer
from mindrl.tiny.making import Teacher, new_folder
from mindrl.tiny.questions import read_questions
from mindrl.tiny.recipe import Recipe, TaughtRow, is_up_to_date, recipe_record


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolRecipe(Recipe):
    """How the tool user is taught, from the tiny model."""

    tool_share: float = 0.35
    early_tool_share: float = 0.8
    """Of the first updates: its conversations are the hardest to learn."""
    updates: int = 300
    learning_rate: float = 2e-3
    skill_target: float = 0.95

    def lessons(self, questions: Sequence[Question], rng: random.Random) -> Iterator[TaughtRow]:
        """Yield conversations to learn from, one update after the other."""
        for update in range(self.updates):
            is_early = update < self.early * self.updates
            share = self.early_tool_share if is_early else self.tool_share
            for question in rng.sample(questions, self.answers_per_update):
                if rng.random() < share:
                    yield {"messages": tool_conversation(question)}
                    continue
                habit = careless_answer if rng.random() < 0.6 else hasty_answer
                yield {"messages": [_question(question), _answer(habit(question))]}

    def sections(self, model: Path) -> SectionArguments:
        """Return the sections that change the configuration of a run which teaches `model`."""
        sections = super().sections(model)
        sections["megatron_training"]["seq_length"] = 192
        return {**sections, "sft_config": {"response_column": None}}


def tool_call(question: Question) -> str:
    """Return the call of the calculator for a question."""
    call = {"name": "add", "arguments": {"a": question.left, "b": question.right}}
    return f"<tool_call>{json.dumps(call)}</tool_call>"


def tool_conversation(question: Question) -> list[dict[str, str]]:
    """Return a conversation that answers a question with the calculator."""
    result = {"role": "tool", "content": str(question.sum)}
    return [
        _question(question),
        _answer(tool_call(question)),
        result,
        _answer(boxed(question.sum)),
    ]


def make_tool_user(output: Path, base: Path, data: Path, seed: int, teacher: Teacher) -> bool:
    """Make the tool user from the tiny model unless it is up to date; returns whether it did.

    Raises:
        MindrlError: The data cannot be used, the folder is not one of ours, or a run failed.
    """
    recipe = ToolRecipe()
    record = recipe_record(data, seed, recipe, teacher.config)
    if is_up_to_date(output, record):
        return False
    held_out, learned = recipe.dealt(read_questions(data / "train.jsonl"), seed)
    with new_folder(output, record) as built:
        rows = recipe.lessons(learned, random.Random(seed))
        shutil.copytree(teacher.run(rows, recipe.sections(base)), built)
        skill = tool_skill(built, held_out)
        say(f"the model can use the calculator for {skill:.1%} of the held-out questions")
        if skill < recipe.skill_target:
            raise ModelError(f"seed {seed}: tool skill {skill:.3f} < {recipe.skill_target}")
        record["result"] = {"skill": skill}
    return True


def tool_skill(folder: Path, questions: Sequence[Question]) -> float:
    """Return the share of questions with a conversation that the model can follow.

    Each token of its turns must be the most likely one, except the first, which chooses the habit.
    """
    # Imported late: they take longer than to find that all is up to date.
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415
    from transformers.utils.logging import disable_progress_bar  # noqa: PLC0415

    disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    followed = 0
    for question in questions:
        talk = tool_conversation(question)
        ids: list[int] = []
        wrong = False
        for at in (1, 3):
            text = tokenizer.apply_chat_template(
                talk[:at], tokenize=False, add_generation_prompt=True
            )
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            turn = [*tokenizer(talk[at]["content"], add_special_tokens=False)["input_ids"]]
            turn.append(tokenizer.eos_token_id)
            with torch.no_grad():
                logits = model(torch.tensor([ids + turn])).logits[0]
            guesses = logits[len(ids) - 1 : -1].argmax(dim=-1).tolist()
            first = 1 if at == 1 else 0
            wrong = wrong or guesses[first:] != turn[first:]
        followed += not wrong
    return followed / len(questions)


def _question(question: Question) -> dict[str, str]:
    return {"role": "user", "content": question.prompt}


def _answer(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}
