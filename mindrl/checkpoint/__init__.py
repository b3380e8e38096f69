"""Weight files: read and write Hugging Face folders and rank files."""
