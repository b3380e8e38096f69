"""Messages between a run and the processes of its environments, as JSON values."""

import hashlib
import json
import struct
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from socket import MSG_DONTWAIT, socket
from typing import Any, Literal, Self

_HEAD = struct.Struct(">I")
_READ_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """A tool call that the policy wrote."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    """Why the call cannot be read; it is then the result. Empty if it can be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """A turn of the policy."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    is_last: bool = False
    """Whether the run ends the conversation after this turn."""
    is_over: bool = False
    """Whether it is no turn: a limit has ended the conversation, which has no reward yet."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Self:
        """Restore it."""
        calls = tuple(ToolCall(**each) for each in values["calls"])
        return cls(**{**values, "calls": calls})


@dataclass(frozen=True, kw_only=True, slots=True)
class GivenPicture:
    """A picture in a text of the environment."""

    at: int
    """Number of characters before it."""
    content: bytes
    """The encoded picture."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentMessage:
    """A message of the environment to the policy."""

    role: Literal["tool", "user"]
    text: str
    pictures: tuple[GivenPicture, ...] = ()
    """Pictures in order."""

    @property
    def pieces(self) -> tuple[str, ...]:
        """The text, cut at its pictures: one piece more than pictures."""
        return _cut(self.text, self.pictures)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"role": self.role, "text": self.text, **_as_json(self.pictures)}

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Self:
        """Restore it."""
        return cls(role=values["role"], text=values["text"], pictures=_of_json(values))


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentAnswer:
    """An environment's answer to a turn."""

    messages: tuple[EnvironmentMessage, ...] = ()
    reward: float = 0.0
    """Reward for the turn."""
    done: bool = False
    """Whether the conversation is over."""
    seconds: float = field(default=0.0, compare=False)
    """Time from the turn to the answer, as the run measures it; no part of its content."""

    def to_json(self) -> dict[str, Any]:
        """Return its content as JSON values."""
        messages = [each.to_json() for each in self.messages]
        return {"messages": messages, "reward": self.reward, "done": self.done}

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Self:
        """Restore it."""
        messages = tuple(map(EnvironmentMessage.of_json, values["messages"]))
        return cls(messages=messages, reward=values["reward"], done=values["done"])

    def fingerprint(self) -> str:
        """Return the SHA-256 by which a replayed answer is compared."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Opening:
    """The text that an environment begins with."""

    text: str | None = None
    """Appended to the last message of the prompt. None leaves the prompt as it is."""
    pictures: tuple[GivenPicture, ...] = ()
    """Pictures in order; empty if there is no text."""

    @property
    def pieces(self) -> tuple[str, ...]:
        """The text, cut at its pictures: one piece more than pictures."""
        return _cut(self.text or "", self.pictures)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"text": self.text, **_as_json(self.pictures)}

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Self:
        """Restore it."""
        return cls(text=values["text"], pictures=_of_json(values))


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """An environment has failed, twice if it was killed or ended."""

    reason: str


class TooLargeError(ValueError):
    """A message exceeds the limit of its receiver."""


class Frames:
    """JSON messages over a stream socket, each after its length."""

    def __init__(self, connection: socket, most_bytes: int = 1 << 30) -> None:
        """Set the connection, and the largest message to be received."""
        self.connection, self.most_bytes = connection, most_bytes
        self._received = bytearray()

    def send(self, values: object) -> None:
        """Send a message."""
        content = json.dumps(values, default=str).encode()
        self.connection.sendall(_HEAD.pack(len(content)) + content)

    def receive(self) -> Any:
        """Wait for a message and return it; None at the end of the connection."""
        while (found := self._whole()) is None:
            if not (more := self.connection.recv(_READ_BYTES)):
                return None
            self._received += more
        return found[0]

    def arrived(self) -> Iterator[Any]:
        """Yield the messages that have arrived, without waiting; None at the end.

        Raises:
            TooLargeError: A message exceeds the limit.
            ValueError: It is no JSON.
        """
        try:
            more = self.connection.recv(_READ_BYTES, MSG_DONTWAIT)
        except BlockingIOError:
            return
        except ConnectionError:
            more = b""
        self._received += more
        while (found := self._whole()) is not None:
            yield found[0]
        if not more:
            yield None

    def _whole(self) -> tuple[Any] | None:
        if len(self._received) < _HEAD.size:
            return None
        (length,) = _HEAD.unpack_from(self._received)
        if length > self.most_bytes:
            raise TooLargeError(f"a message of {length:,} bytes; at most {self.most_bytes:,}")
        end = _HEAD.size + length
        if len(self._received) < end:
            return None
        content = bytes(self._received[_HEAD.size : end])
        del self._received[:end]
        return (json.loads(content),)


def _cut(text: str, pictures: Sequence[GivenPicture]) -> tuple[str, ...]:
    places = [each.at for each in pictures]
    ends = zip([0, *places], [*places, len(text)], strict=True)
    return tuple(text[start:end] for start, end in ends)


def _as_json(pictures: Sequence[GivenPicture]) -> dict[str, Any]:
    """Return pictures as JSON values; empty without any, so that answers of text stay equal."""
    found = [{"at": each.at, "content": b64encode(each.content).decode()} for each in pictures]
    return {"pictures": found} if found else {}


def _of_json(values: Mapping[str, Any]) -> tuple[GivenPicture, ...]:
    return tuple(
        GivenPicture(at=each["at"], content=b64decode(each["content"]))
        for each in values.get("pictures", ())
    )
