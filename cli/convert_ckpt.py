"""Convert weights: python cli/convert_ckpt.py --from DIR --to NEWDIR [--layout LAYOUT] ..."""

from in_environment import start

if __name__ == "__main__":
    start("convert-ckpt")
