"""The planner of runs: every legal way to lay a model over devices, judged and ranked."""
