"""Import of MindSpeed-RL and verl configurations into mindrl configuration keys."""
