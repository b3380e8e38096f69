"""Environments of the tests, as users write them."""

import mmap
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np


class Clicks:
    """A tool whose calls are the reward."""

    def __init__(self, marker: str = "") -> None:
        self.marker, self.clicks = marker, 0

    def reset(self, **_: object) -> None:
        """Begin."""

    def click(self) -> str:
        """Click once."""
        self.clicks += 1
        return "click"

    def get_reward(self) -> float:
        return float(self.clicks)


class Guess:
    """A text game that draws from Python's shared random numbers, and breaks on request."""

    def __init__(self, marker: str = "") -> None:
        self.marker = marker

    def reset(self, **row: object) -> str:
        self.number, self.turns = random.randrange(100), 0
        if "moody" in row:
            again = Path(self.marker).exists()
            Path(self.marker).touch()
            return "again" if again else "first"
        return f"guess {row.get('low', 0)} to 99"

    def step(self, text: str) -> tuple[str, float, bool]:
        self.turns += 1
        if text in ("reserve", "fill"):
            return str(memory_of(text)), 0.0, False
        if (answer := self.broken(text)) is not None:
            return answer
        word = random.choice(("no", "nope"))
        return f"{word} {self.number}", float(self.turns) / 4, text == str(self.number)

    def broken(self, text: str) -> tuple[str, float, bool] | None:
        """Break as the text says; return an answer if that is what is broken."""
        match text:
            case "hang":
                time.sleep(600)
            case "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "flood":
                return "x" * 10_000_000, 0.0, False
            case "orphan":
                subprocess.Popen(["sleep", "598"])
            case "raise":
                raise ValueError("bad move")
            case "not a number":
                return "", float("nan"), False
            case "crash once" | "otherwise once":
                return self.broken_once(text)
        print("noise")
        return None

    def broken_once(self, text: str) -> tuple[str, float, bool] | None:
        if Path(self.marker).exists():
            return None
        Path(self.marker).touch()
        if text == "crash once":
            os.kill(os.getpid(), signal.SIGKILL)
        return "before", 0.0, False


def memory_of(way: str) -> int:
    """Reserve 64 GiB of addresses, or fill 80 MiB; return the bytes."""
    if way == "fill":
        return len(b"x" * (80 << 20))
    # As WebAssembly does for the largest memory that a program may ever have.
    return len(mmap.mmap(-1, 64 << 30, mmap.MAP_PRIVATE, mmap.PROT_READ))


class Calculator:
    """Tools by TRL's contract."""

    def reset(self, **_: object) -> None:
        self.used = 0

    def add(self, a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: The first number.
            b: The second number.
        """
        self.used += 1
        return a + b

    def get_reward(self) -> float:
        return self.used / 2


def divide(a: float, b: float) -> dict[str, float]:
    """Divide a number by another.

    Args:
        a: The number.
        b: The other one.
    """
    return {"quotient": a / b}


async def slow_square(a: int) -> int:
    """Square a number.

    Args:
        a: The number.
    """
    return a * a


class Gym:
    """The five values of gymnasium."""

    def reset(self, **_: object) -> tuple[str, dict[str, object]]:
        return "start", {}

    def step(self, text: str) -> tuple[str, Any, bool, bool, dict[str, object]]:
        reward = {"numpy": np.float32(0.5), "tensor": np.array(2), "huge": 1e30}.get(text, 1.0)
        return "end", reward, False, text == "stop", {}
