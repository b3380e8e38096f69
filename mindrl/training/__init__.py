"""Training engines: one package each."""
