"""What the test of drafts calls in a prepared process; see forked_workers.run."""

from draft_messages import Drafted
from rollout_messages import Question
from rollout_probe import ONE_RANK, ask, in_rounds, sleeping_engine
from weight_files import load_one_by_one, rollout_table

from mindrl.config.generate import SpeculativeConfig


def answers_of(
    folder: str, questions: list[Question], pairs: Question, config: SpeculativeConfig
) -> Drafted:
    """Ask an engine that may draft; its weights arrive after it was started."""
    engine = sleeping_engine(
        folder,
        speculative_config=config,
        max_num_seqs=64,
        max_model_len=128,
        max_num_batched_tokens=512,
    )
    engine.onload("weights")
    load_one_by_one(engine.weight_sink(), folder, rollout_table(folder, ONE_RANK))
    engine.onload("kv_cache")
    assert engine.device_bytes("weights") == engine.nbytes("weights")
    engine.flush_counts()
    answers, counts = [], []
    for question in questions:
        answers.append(ask(engine, question))
        counts.append(engine.flush_counts())
    rounds = in_rounds(engine, questions[-1], steps=3)
    engine.flush_counts()
    return Drafted(
        weight_bytes=engine.nbytes("weights"),
        answers=answers,
        counts=counts,
        in_rounds=rounds,
        pairs=ask(engine, pairs),
        pair_counts=engine.flush_counts(),
    )
