"""Reinforcement-learning post-training for large language models, Ascend NPU first."""
