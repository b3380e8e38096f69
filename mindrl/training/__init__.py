"""The Megatron-core adapter."""
