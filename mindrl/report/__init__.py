"""One page per run: what it learned, where its time went, what the model said."""
