"""All that is known of a run before it starts: what is wrong with it, and its plan."""
