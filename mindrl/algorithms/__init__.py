"""Pure tensor maths of reinforcement learning."""
