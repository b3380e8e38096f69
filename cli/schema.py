"""Print a JSON schema of configuration files: python cli/schema.py > FILE."""

from in_environment import start

if __name__ == "__main__":
    start("schema")
