"""Section `teacher_config`: a model that the policy becomes like."""

from typing import Annotated, Literal, NamedTuple

from pydantic import Field
from pydantic.dataclasses import dataclass

from mindrl.config.role import RoleLayoutConfig
from mindrl.config.section import SECTION, Coefficient, PathText, SequenceCount

DivergenceForm = Literal["reverse", "forward"]


class Candidates(NamedTuple):
    """Which tokens a teacher returns at each position: its most probable ones."""

    number: int
    below: int
    """Number of token ids to choose from: the policy's, of which a teacher may have more."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class SourceTeacher:
    """Teacher of the rows with one `data_source`.

    `teacher_config.models` is a list of such sections.
    """

    data_source: str
    """Value of `data_config.source_column` in the rows, or the name of a set."""
    load: PathText
    """Folder of its model, with the sizes of `teacher_config.load` and the actor's tokenizer."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class TeacherConfig(RoleLayoutConfig):
    """The model that the policy imitates on its own responses. Left out by default."""

    load: PathText | None = None
    """Folder of a language model of any size with the actor's tokenizer. None with `url`."""
    url: str | None = None
    """Address of a vLLM server with the teacher, such as http://127.0.0.1:8000, in place of `load`.
    It numbers tokens as the actor's tokenizer."""
    token_file: PathText | None = None
    """File that contains only the token of that server. None for a server without one."""
    models: tuple[SourceTeacher, ...] = ()
    """Teachers by `data_source`, of the same sizes, which take turns on the devices. If there are
    any, each `data_source` of the training rows needs an entry; `load` teaches rows without one."""
    advantage_coef: Coefficient = 1.0
    """Weight of log p(teacher) - log p(policy) of a token, in nats, which is added to its
    advantage. `rl_config.adv_estimator: teacher` uses no others. Not with `candidates`."""
    candidates: Annotated[int, Field(ge=0, le=1024)] = 0
    """Number of the teacher's most probable tokens at each position. The divergence over them, and
    over all other tokens as one, is a term of the loss in place of the advantage. 0: advantage."""
    divergence: DivergenceForm = "reverse"
    """With `candidates`: `reverse` KL(policy || teacher), or `forward` KL(teacher || policy)."""
    divergence_coef: Coefficient = 1.0
    """With `candidates`: coefficient of the divergence in the loss."""
    micro_batch_size: SequenceCount | None = None
    """Sequences per forward pass of one data-parallel rank. None uses
    `actor_config.micro_batch_size`."""
    offload_param: bool = True
    """Keep the weights on the host except while log-probs of the teacher are computed."""

    @property
    def folders(self) -> tuple[str, ...]:
        """Folders of all teachers, each once, in the order in which workers number them."""
        given = (self.load, *(each.load for each in self.models))
        return tuple(dict.fromkeys(each for each in given if each is not None))

    def number(self, source: str) -> int:
        """Return the number of the teacher of a `data_source`: its index in `folders`."""
        own = {each.data_source: each.load for each in self.models}
        return self.folders.index(own.get(source) or self.folders[0])
