"""The programs: argument parsers, Hydra start-up, tables, exit codes."""
