"""The programs: argparse and Hydra faces, tables, exit codes."""
