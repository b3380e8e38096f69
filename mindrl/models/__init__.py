"""What Hugging Face says of a model: sizes, names, shapes; and who holds which part of it."""
