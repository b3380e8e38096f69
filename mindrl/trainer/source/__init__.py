"""Sources of the data of a step: generated groups, stored rollouts or a spool."""
