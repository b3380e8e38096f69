"""Names, shapes and shardings of each model family."""
