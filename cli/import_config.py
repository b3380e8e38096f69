"""Convert files of MindSpeed-RL or verl: python cli/import_config.py THEIRS.yaml -o OURS.yaml."""

from in_environment import start

if __name__ == "__main__":
    start("import-config")
