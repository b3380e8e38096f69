"""Networks of the transformers library under PyTorch's own engine."""
