"""A game of three turns with a reward in each, by what the policy has written."""


class WordGame:
    """Pays for the length of each turn, and never answers alike."""

    def reset(self, **_: object) -> None:
        self.turns = 0

    def step(self, text: str) -> tuple[str, float, bool]:
        self.turns += 1
        return f"{self.turns}+{len(text) % 7}=?", (len(text) % 5) / 4, self.turns == 3
