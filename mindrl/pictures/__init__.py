"""Pictures of rows: opened with care, kept under numbers, and cut into patches for a model."""
