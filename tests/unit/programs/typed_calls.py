"""Calls of `train` for mypy only: right calls pass, and each mistake is an error.

Strict mypy refuses a `type: ignore` that nothing needs, so a mistake that it no longer finds fails
`make types`.
"""

from mindrl import train


def right() -> None:
    """Sections are dictionaries whose keys and types an editor knows."""
    train("grpo_tiny_cpu", megatron_training={"train_iters": 2}, rl_config={"device": "cpu"})
    train(
        actor_config={"lr": 1, "lora": {"r": 8, "target_modules": ["q_proj"]}},
        generate_config={"sampling_config": {"temperature": 0.7}},
        rl_config={"actor_resource": {"num_npus": 2}, "verifier_kwargs": [{"low": 0.1}]},
        critic_config=None,
    )


def wrong() -> None:
    """Keys that no section has, values of another type, a key without its section."""
    train(rl_config={"no_such_key": 1})  # type: ignore[typeddict-unknown-key]
    train(rl_config={"device": "tpu"})  # type: ignore[typeddict-item]
    train(megatron_training={"train_iters": "two"})  # type: ignore[typeddict-item]
    train(learning_rate=1e-5)  # type: ignore[call-arg]
