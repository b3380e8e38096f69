"""Where the data of a step comes from: generated groups, stored rollouts or a spool."""
