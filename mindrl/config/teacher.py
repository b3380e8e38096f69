"""Section `teacher_config`: a model that the policy becomes like."""

from pydantic.dataclasses import dataclass

from mindrl.config.role import RoleLayoutConfig
from mindrl.config.section import SECTION, Coefficient, PathText, SequenceCount


@dataclass(frozen=True, kw_only=True, config=SECTION)
class TeacherConfig(RoleLayoutConfig):
    """The model that the policy imitates on its own responses. Left out by default."""

    load: PathText
    """Folder of a language model of any size with the actor's tokenizer."""
    advantage_coef: Coefficient = 1.0
    """Weight of log p(teacher) - log p(policy) of a token, in nats, which is added to its
    advantage. `rl_config.adv_estimator: teacher` uses no other advantages."""
    micro_batch_size: SequenceCount | None = None
    """Sequences per forward pass of one data-parallel rank. None uses
    `actor_config.micro_batch_size`."""
    offload_param: bool = True
    """Keep the weights on the host except while log-probs of the teacher are computed."""
