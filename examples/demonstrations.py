r"""Write worked answers to additions, as the rows of sft_then_grpo.sh.

`python examples/demonstrations.py FILE` writes 256 rows such as
{"messages": "47+38=?", "answer": "7+8=15, 4+3+1=8, \\boxed{85}"}.
"""

import json
import random
import sys
from pathlib import Path


def demonstrations(count: int, seed: int) -> list[dict[str, str]]:
    """Return additions with answers that work out each column, with the carry."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        left, right = rng.randint(10, 99), rng.randint(10, 99)
        (a, b), (c, d) = divmod(left, 10), divmod(right, 10)
        carry = (b + d) // 10
        work = f"{b}+{d}={b + d}, {a}+{c}+{carry}={a + c + carry}"
        rows.append(
            {"messages": f"{left}+{right}=?", "answer": rf"{work}, \boxed{{{left + right}}}"}
        )
    return rows


if __name__ == "__main__":
    lines = (json.dumps(row) for row in demonstrations(256, seed=1))
    Path(sys.argv[1]).write_text("\n".join(lines) + "\n", encoding="utf-8")
