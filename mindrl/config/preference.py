"""Section `preference_config`: training on preferences in the data: DPO, KTO, reward models."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from mindrl.config.section import SECTION, PathText

PreferenceForm = Literal[
    "sigmoid", "sigmoid_norm", "ipo", "hinge", "kto", "bradley_terry", "score", "steps"
]
REWARD_FORMS: tuple[PreferenceForm, ...] = ("bradley_terry", "score", "steps")
"""Losses of a reward model."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class PreferenceConfig:
    """Rows and loss of a run on preferences."""

    loss: PreferenceForm = "sigmoid"
    """Form of the loss: `sigmoid` (DPO), `sigmoid_norm` (DPO on mean log-probs), `ipo`, `hinge`, or
    `kto`, for rows of single answers with a label. The others train a reward model:
    `bradley_terry` on pairs, `score` on rows of single answers with a score, `steps` on rows of
    single answers with a label for each step."""
    beta: Annotated[float, Field(gt=0, le=1000)] = 0.1
    """Weight of the log-ratio to the reference: higher values stay closer to it."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """Probability that a preference is wrong, for `sigmoid` and `sigmoid_norm`."""
    reference_free: bool = False
    """Whether the reference is uniform, so that no model is loaded for it."""
    reference_file: PathText | None = None
    """File with the reference's log-probs of all answers in the rows, for several epochs or runs.
    Missing ones are computed before the first step. None: each update computes its own."""
    desirable_weight: Annotated[float, Field(ge=0, le=1000)] = 1.0
    """Weight of desirable answers, for `kto`."""
    undesirable_weight: Annotated[float, Field(ge=0, le=1000)] = 1.0
    """Weight of undesirable answers, for `kto`."""
    center_rewards_coefficient: Annotated[float, Field(ge=0, le=1000)] = 0.0
    """Weight of the squared sum of the two rewards of a pair, which keeps rewards near 0, for
    `bradley_terry`."""
    system_column: str | None = None
    """Column of a system message that begins the conversation; rows without text in it have none.
    None: `megatron_training.system_prompt` begins all."""
    chosen_column: str = "chosen"
    """Column of the preferred answer: text, messages, or with no prompt column a conversation."""
    rejected_column: str = "rejected"
    """Column of the other answer, in the same form."""
    completion_column: str = "completion"
    """Column of the answer, for `kto` and `score`."""
    label_column: str = "label"
    """Column that is true for desirable answers, for `kto`."""
    margin_column: str | None = None
    """Column of the least difference of the rewards of a pair, for `bradley_terry`. None: 0."""
    score_column: str = "score"
    """Column of the reward that an answer should get, for `score`."""
    steps_column: str = "completions"
    """Column with a list of the steps of an answer, for `steps`."""
    step_labels_column: str = "labels"
    """Column with a list of labels, true for each right step, or its probability; for `steps`."""
    step_separator: Annotated[str, Field(min_length=1)] = "\n"
    """Text between two steps of an answer, for `steps`."""

    @property
    def sequences_per_row(self) -> int:
        """Sequences that an update trains on for each row."""
        return 1 if self.loss in ("kto", "score", "steps") else 2

    @property
    def uses_reference(self) -> bool:
        """Whether the loss needs the log-probs of a reference model."""
        return not (self.reference_free or self.trains_rewards)

    @property
    def trains_rewards(self) -> bool:
        """Whether the run trains a reward model, not a policy."""
        return self.loss in REWARD_FORMS
