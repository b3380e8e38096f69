"""The one place that names a vendor: NPU, CUDA and plain CPU."""
