"""Models in plain torch, on DeviceMesh, DTensor and FSDP2: nothing but PyTorch's own."""
