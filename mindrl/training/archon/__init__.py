"""Models in plain torch, with PyTorch's own DeviceMesh, DTensor and FSDP2."""
