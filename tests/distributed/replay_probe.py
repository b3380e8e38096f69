"""What the tests of router replay call in prepared processes; see forked_workers.run."""

from collections.abc import Sequence

from replay_messages import Replayed
from training_messages import Case, Course
from training_probe import copied, of_any_engine
from training_shares import share


def replayed(cases: Sequence[Case], course: Course) -> list[Replayed]:
    """Read the first minibatch, whose routes are kept; then take an update on each."""
    found = []
    for case in cases:
        model = of_any_engine(case, course.optimizer)
        model.forward(share(case, course.minibatches[0]), course.micro_batching)
        kept, metrics, weights = [], [], []
        for minibatch in course.minibatches:
            weights.append(copied(model))
            metrics.append(
                model.train_step(
                    share(case, minibatch), course.micro_batching, course.loss, keep=kept.append
                )
            )
        found.append(Replayed(metrics=metrics, logprobs=kept, weights=weights))
    return found
