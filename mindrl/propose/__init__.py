"""The run planner: every legal way to lay out a model over devices, checked and ranked."""
