"""Names of pictures in files, in reports and for people."""


def picture_name(number: int) -> str:
    """Return the name of the picture with this number: 16 hexadecimal digits."""
    return f"{number:016x}"
