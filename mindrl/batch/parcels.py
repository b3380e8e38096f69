"""Answers of workers that other workers need, and that the driver passes on unread.

Imports no torch: worker processes open parcels before they import it.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Parcel:
    """An answer that stays where it is: the driver receives a reference, which it can pass on."""

    content: Any
