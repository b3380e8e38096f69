"""From data files to token ids."""
