"""Backend strings: layouts as one word. Pure Python."""
