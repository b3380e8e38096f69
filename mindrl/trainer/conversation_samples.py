"""Conversations of a batch as people read them: who wrote what, turn by turn."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from mindrl.batch.conversations import Dialogue, MessageRole
from mindrl.batch.prompts import PlacedImage, Prompt
from mindrl.data.turn_template import TurnTemplate
from mindrl.observability.picture_names import picture_name
from mindrl.observability.samples import ConversationPiece, SampledConversation


@dataclass(frozen=True, kw_only=True)
class ShownConversations:
    """The conversations of the rows of a batch."""

    dialogues: Sequence[Dialogue]
    template: TurnTemplate
    decode: Callable[[list[int]], str]

    def failed(self) -> list[bool]:
        """Return for each row whether its environment has failed."""
        return [each.ending == "failed" for each in self.dialogues]

    def sampled(self, row: int, prompt: Prompt, tokens: list[int]) -> SampledConversation:
        """Return a row's conversation from its data prompt and all tokens after its own prompt."""
        dialogue = self.dialogues[row]
        begins, asked = _added(prompt.token_ids, dialogue.prompt_ids), len(dialogue.prompt_ids)
        shown = [each for each in dialogue.images[len(prompt.images) :] if each.first < asked]
        pieces = [self._given("user", begins, begins, shown)] if begins else []
        pieces += self._pieces(dialogue, tokens)
        return SampledConversation(ending=dialogue.ending or "", pieces=pieces)

    def _pieces(self, dialogue: Dialogue, tokens: list[int]) -> Iterator[ConversationPiece]:
        restarts = {each.start for each in dialogue.restarts}
        starts = [turn.start for turn in dialogue.turns[1:]] + [dialogue.next_start]
        asked = len(dialogue.prompt_ids)
        for turn, next_start in zip(dialogue.turns, starts, strict=False):
            written = tokens[turn.start : turn.end]
            yield ConversationPiece(
                by="policy",
                text=self.decode(written),
                tokens=len(written),
                masked=False,
                calls=turn.calls,
                reward=turn.reward,
                seconds=turn.seconds,
            )
            given = tokens[turn.end : next_start]
            if turn.messages and (given or turn.end in restarts):
                role, text = turn.messages[0][0], "\n".join(text for _, text in turn.messages)
                yield ConversationPiece(by=role, text=text, tokens=len(given), masked=True)
            elif turn.role is not None and given:
                places = range(asked + turn.end, asked + next_start)
                shown = [each for each in dialogue.images if each.first in places]
                yield self._given(turn.role, given, self.template.content(turn.role, given), shown)
        if rest := tokens[dialogue.next_start :]:
            text = self.decode(rest)
            yield ConversationPiece(by="policy", text=text, tokens=len(rest), masked=False)

    def _given(
        self,
        role: MessageRole,
        tokens: list[int],
        content: list[int],
        shown: Sequence[PlacedImage],
    ) -> ConversationPiece:
        return ConversationPiece(
            by=role,
            text=self.decode(content),
            tokens=len(tokens),
            masked=True,
            pictures=tuple(picture_name(each.number) for each in shown) or None,
        )


def _added(prompt_ids: Sequence[int], own_ids: Sequence[int]) -> list[int]:
    """Return the tokens that an environment has inserted into a prompt, before its end."""
    before = len([*takewhile(_are_equal, zip(prompt_ids, own_ids, strict=False))])
    ends = zip(reversed(prompt_ids[before:]), reversed(own_ids[before:]), strict=False)
    after = len([*takewhile(_are_equal, ends)])
    return [*own_ids[before : len(own_ids) - after]]


def _are_equal(pair: tuple[int, int]) -> bool:
    return pair[0] == pair[1]
