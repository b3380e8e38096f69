"""Load data files and convert them to token ids."""
