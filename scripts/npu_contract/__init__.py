"""The names that mindrl uses of the NPU packages, looked up in their published sources."""
