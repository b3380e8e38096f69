"""Model descriptions from Hugging Face (sizes, names, shapes) and shardings of their tensors."""
