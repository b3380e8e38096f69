"""What the test of texts that end responses calls in a prepared process."""

from rollout_messages import Question
from rollout_probe import ONE_RANK, ask, in_rounds, sleeping_engine
from weight_files import load_one_by_one, rollout_table

from mindrl.batch.rollouts import Responses
from mindrl.config.generate import SamplingConfig
from mindrl.layouts.layout import TrainLayout
from mindrl.training.megatron.parallel import initialise_model_parallel


def answered(folder: str, stop: tuple[str, ...], questions: list[Question]) -> list[Responses]:
    """Ask an engine that knows these texts, at once and in rounds; each question twice."""
    initialise_model_parallel(TrainLayout(), seed=1, timeout_minutes=7)
    engine = sleeping_engine(folder, sampling_config=SamplingConfig(stop=stop))
    engine.onload("weights")
    load_one_by_one(engine.weight_sink(), folder, rollout_table(folder, ONE_RANK))
    engine.onload("kv_cache")
    found = [ask(engine, question) for question in questions]
    return [*found, *(in_rounds(engine, question, steps=3) for question in questions)]
