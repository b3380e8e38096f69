"""Places besides the run folder that the metrics of a run go to, none of which it waits for."""
