"""Weights in files: Hugging Face folders and rank files, read and written."""
