"""Natural mistakes of rewards, with the exact words that a program says before it starts anything.

Each is a row: what somebody does, the function or the keys, the words.
"""

from pathlib import Path

import pytest
from mistaken import Said
from nightly import at_night_but

_NEED = (
    "need (response: str, reference: str) -> float, or parameters by name: response, reference, "
    "prompt, messages, data_source, token_ids, prompt_token_ids, group_responses, and columns of "
    "the row"
)
_TRIED = " fails in a trial call: "
_RIGHT = "; the response was '<think>so it is</think><answer>Answer: \\\\boxed{2}</answer>'"
_PLAIN = "def score(response, reference):\n    "

CODE: dict[str, tuple[str, str]] = {
    "forgets to return": (
        f"{_PLAIN}right = reference in response",
        (
            f"{_TRIED}value: returned None; need a finite number (own.py:1); a path "
            f"through the function ends without `return`{_RIGHT}"
        ),
    ),
    "returns text": (
        f"{_PLAIN}return '1.0'",
        f"{_TRIED}value: returned '1.0'; need a finite number (own.py:1){_RIGHT}",
    ),
    "returns a pair": (
        f"{_PLAIN}return 1.0, 'right'",
        (
            f"{_TRIED}value: returned (1.0, 'right'); need a finite number (own.py:1); a "
            f"function that takes lists needs the parameters responses, references{_RIGHT}"
        ),
    ),
    "returns nan": (
        f"{_PLAIN}return float('nan')",
        f"{_TRIED}value: returned nan; need a finite number (own.py:1){_RIGHT}",
    ),
    "returns one number for a list": (
        "def score(responses, references):\n    return 1.0",
        (
            f"{_TRIED}value: returned 1.0; need a list of 2 numbers, because it takes lists "
            f"(own.py:1){_RIGHT}"
        ),
    ),
    "returns too few numbers": (
        "def score(completions, **columns):\n    return [1.0]",
        f"{_TRIED}value: returned 1 scores; need 2, one for each response (own.py:1){_RIGHT}",
    ),
    "forgets to await": (
        "async def ask(text):\n    return 1.0\n\n\n" + _PLAIN + "return ask(response)",
        (
            f"{_TRIED}value: returned <coroutine object ask at 0x..>; need a finite number "
            f"(own.py:5); it is a coroutine: make the function itself `async def`{_RIGHT}"
        ),
    ),
    "yields": (
        f"{_PLAIN}yield 1.0",
        " (own.py:1) is a generator; need a function that returns the score",
    ),
    "misspells a column": (
        "def score(response, reference, answers):\n    return 1.0",
        (
            " has the parameter 'answers', which is not a column of the rows; did you mean "
            f"'answer'?; {_NEED}; rows.jsonl has the columns messages, answer"
        ),
    ),
    "takes no response": (
        "def score(prompt, reference):\n    return 1.0",
        f" (own.py:1) has the signature (prompt, reference); {_NEED}",
    ),
    "takes a completion of TRL for a message": (
        "def score(completions, **_):\n    return [float(each['content']) for each in completions]",
        (
            f"{_TRIED}exception: 'TypeError: list indices must be integers or slices, not str' "
            f"(own.py:2){_RIGHT}"
        ),
    ),
    "names a class that cannot be called": (
        "class score:\n    def rate(self, response, reference):\n        return 1.0",
        " (own.py:1) is a class without __call__; add one",
    ),
    "names a number": ("score = 1.0", " is 1.0 of type float; need a function"),
    "misspells a variable": (
        f"{_PLAIN}return float(rsponse == reference)",
        f"{_TRIED}exception: \"NameError: name 'rsponse' is not defined\" (own.py:2){_RIGHT}",
    ),
    "never ends": (
        "import time\n\n\n" + _PLAIN + "time.sleep(60)",
        f"{_TRIED}timeout: no score within 1 s (own.py:4){_RIGHT}",
    ),
    "ends the process": (
        "import os\n\n\n" + _PLAIN + "os._exit(1)",
        f"{_TRIED}crash: process ended: exit code 1 (own.py:4){_RIGHT}",
    ),
    "imports what is not installed": (
        "import not_installed",
        ": cannot import file own.py: ModuleNotFoundError: No module named 'not_installed'",
    ),
    "forgets a colon": (
        "def score(response, reference)\n    return 1.0",
        ": cannot import file own.py: SyntaxError: expected ':' (own.py, line 1)",
    ),
    "turns the range round": (
        f"{_PLAIN}return 1.0\n\n\nscore.score_range = (1.0, 0.0)",
        (
            " (own.py:1) has score_range=(1.0, 0.0); need (lowest, highest), both finite and at "
            "most 1e+09 in size"
        ),
    ),
}
KEYS: dict[str, tuple[list[str], str]] = {
    "misspells a builtin": (
        ["verifier_function=[math_verfy,boxed_format]"],
        (
            "rl_config.verifier_function='math_verfy' is not a built-in reward; "
            "built-ins: acc_for_dapo, base_acc, boxed_format, math_verify, "
            "math_verify_reward; your own: 'package.module:function' or "
            "'path/to/file.py:function'; did you mean 'math_verify'?"
        ),
    ),
    "names a file without a function": (
        ["verifier_function=[own.py]", "verifier_weight=[1.0]"],
        (
            "rl_config.verifier_function='own.py' is not a built-in reward; built-ins: "
            "acc_for_dapo, base_acc, boxed_format, math_verify, math_verify_reward; your own: "
            "'package.module:function' or 'path/to/file.py:function'"
        ),
    ),
    "names a file that is not there": (
        ["verifier_function=[rewards/own.py:score]", "verifier_weight=[1.0]"],
        "rl_config.verifier_function='rewards/own.py:score': no file at rewards/own.py",
    ),
    "forgets that there were two weights": (
        ["verifier_function=[math_verify]"],
        (
            "rl_config.verifier_weight has 2 entries and rl_config.verifier_function has "
            "1; give one weight for each function"
        ),
    ),
    "gives arguments to a function without any": (
        ["verifier_kwargs=[{limit:4},{}]"],
        (
            "rl_config.verifier_kwargs of math_verify: {'limit': 4} for (response: str, "
            "reference: str) -> float: got an unexpected keyword argument 'limit'"
        ),
    ),
    "wants failures to be 0": (
        ["on_reward_failure=zero"],
        "rl_config.on_reward_failure=\"zero\" must be 'stop_if_all_fail', 'stop' or 'worst'",
    ),
}


EVERY_CHANGE = CODE.keys() - {
    *("returns text", "returns a pair", "returns nan", "returns one number for a list"),
    *("forgets to await", "yields", "takes a completion of TRL for a message"),
}
"""Without trial calls whose answers others have too."""


@pytest.mark.parametrize("name", at_night_but(EVERY_CHANGE, CODE))
def test_a_function_that(name: str, said: Said, tmp_path: Path) -> None:
    code, words = CODE[name]
    (tmp_path / "own.py").write_text(f"{code}\n", encoding="utf-8")
    given = (f"verifier_function=[{tmp_path}/own.py:score]", "verifier_weight=[1.0]")
    found = said([f"rl_config.{each}" for each in (*given, "verifier_timeout=1.0")])
    assert found == (2, f"error: rl_config.verifier_function='own.py:score'{words}\n")


@pytest.mark.parametrize(
    ("keys", "words"), [pytest.param(*each, id=name) for name, each in KEYS.items()]
)
def test_a_configuration_that(keys: list[str], words: str, said: Said) -> None:
    assert said([f"rl_config.{each}" for each in keys]) == (2, f"error: {words}\n")
