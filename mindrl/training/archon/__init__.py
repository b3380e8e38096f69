"""The PyTorch-native engine."""
