"""The loop that teaches the counter, and what it has learned.

Shapes: B pictures, T positions, V the vocabulary.
"""

import random
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedTokenizerFast

from mindrl.tiny.arithmetic import boxed
from mindrl.tiny.vision.habits import CounterRecipe
from mindrl.tiny.vision.model import TinyVisionModel, image_processor
from mindrl.tiny.vision.squares import MOST_SQUARES, QUESTION, draw_squares


class Lessons:
    """Draws pictures, and compares a model's answers to them."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, recipe: CounterRecipe) -> None:
        """Set how the model is taught."""
        self.tokenizer, self.recipe = tokenizer, recipe
        self.images = image_processor(recipe.family)
        self.token = tokenizer.convert_tokens_to_ids("<|image_pad|>")

    def teach(self, model: TinyVisionModel, rng: random.Random) -> None:
        """Take the recipe's updates, in one thread: several wait for each other longer."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            self._teach(model, rng)
        finally:
            torch.set_num_threads(threads)

    def _teach(self, model: TinyVisionModel, rng: random.Random) -> None:
        recipe = self.recipe
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=0.01
        )
        warmup = recipe.updates // 20
        for update in range(recipe.updates):
            share = min(1.0, (update + 1) / warmup)
            share *= 1.0 - 0.95 * update / recipe.updates
            optimizer.param_groups[0]["lr"] = share * recipe.learning_rate
            counts = [rng.randint(1, MOST_SQUARES) for _ in range(recipe.pictures_per_update)]
            is_early = update < recipe.early * recipe.updates
            answers = [recipe.answer(count, rng, is_early=is_early) for count in counts]
            logits_BTV, targets_BT = self._read(model, counts, answers, rng)
            loss = functional.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    @torch.no_grad()
    def skill(self, model: TinyVisionModel, rng: random.Random) -> float:
        """Return the share of new pictures that both habits can be followed about."""
        counts = [index % MOST_SQUARES + 1 for index in range(self.recipe.held_out)]
        logits_BTV, targets_BT = self._read(model, counts, counts, rng)
        digits_D = torch.tensor(
            [self.tokenizer.convert_tokens_to_ids(str(each)) for each in range(MOST_SQUARES + 2)]
        )
        # The number is the second token of the answer.
        best_B2 = logits_BTV[:, 1][:, digits_D].topk(2).indices
        wanted_B2 = torch.tensor([[count + 1, count] for count in counts])
        can_write_B = (logits_BTV.argmax(dim=-1) == targets_BT)[:, [0, 2, 3]].all(dim=1)
        return float(((best_B2 == wanted_B2).all(dim=1) & can_write_B).float().mean())

    def _read(
        self,
        model: TinyVisionModel,
        counts: Sequence[int],
        answers: Sequence[int],
        rng: random.Random,
    ) -> tuple[Tensor, Tensor]:
        """Return the logits of answers to new pictures, and the tokens of the answers."""
        made = self.images(
            images=[draw_squares(count, rng) for count in counts], return_tensors="pt"
        )
        tokens = int(made["image_grid_thw"][0].prod()) // self.images.merge_size**2
        prompt = self._prompt(tokens)
        tails_BT = torch.tensor([self._answer(each) for each in answers])
        ids_BT = torch.cat([torch.tensor([prompt]).expand(len(answers), -1), tails_BT], dim=1)
        logits_BTV = model(
            input_ids=ids_BT, mm_token_type_ids=(ids_BT == self.token).int(), **made
        ).logits
        return logits_BTV[:, len(prompt) - 1 : -1], tails_BT

    def _prompt(self, tokens: int) -> list[int]:
        content = [{"type": "image"}, {"type": "text", "text": QUESTION}]
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        at = ids.index(self.token)
        return [*ids[:at], *[self.token] * tokens, *ids[at + 1 :]]

    def _answer(self, number: int) -> list[int]:
        ids = self.tokenizer.encode(boxed(number), add_special_tokens=False)
        return [*ids, self.tokenizer.eos_token_id]
