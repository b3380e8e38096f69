"""Open an encoded picture from an untrusted source, as 8-bit RGB."""

import struct
import warnings
from io import BytesIO

from PIL import Image, ImageOps, UnidentifiedImageError

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
"""Formats that are opened. Decoders of others, such as EPS, start programs or are rarely tested."""
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
"""Modes with 8 bits or fewer for each channel."""
_LONGEST_SIDE = 200
"""Most widths of the short side in the long one; image processors refuse more."""


def opened_picture(content: bytes, *, most_pixels: int, kept_pixels: int) -> Image.Image:
    """Return a picture as RGB: turned as its EXIF data demand, transparent parts white.

    Args:
        content: The encoded file.
        most_pixels: A picture with more is refused before it is decoded.
        kept_pixels: A picture with more is scaled down to at most this number.

    Raises:
        ValueError: Why the picture is refused.
    """
    with warnings.catch_warnings():
        # The size is compared here.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            with Image.open(BytesIO(content), formats=FORMATS) as image:
                _require_bounds(image, most_pixels)
                return _scaled(_as_rgb(image), kept_pixels)
        except UnidentifiedImageError:
            raise ValueError(f"not a picture; needed {', '.join(FORMATS)}") from None
        except Image.DecompressionBombError as error:
            raise ValueError(f"{error}; needed at most {most_pixels} pixels") from None
        except (OSError, SyntaxError, EOFError) as error:
            raise ValueError(f"broken picture ({error})") from None


def _require_bounds(image: Image.Image, most_pixels: int) -> None:
    width, height = image.size
    if width * height > most_pixels:
        raise ValueError(
            f"{width} x {height} pixels; needed at most {most_pixels}, "
            "data_config.images.max_file_pixels"
        )
    if max(width, height) > _LONGEST_SIDE * min(width, height):
        need = f"needed sides that differ by a factor of at most {_LONGEST_SIDE}"
        raise ValueError(f"{width} x {height} pixels; {need}")
    if getattr(image, "n_frames", 1) > 1:
        raise ValueError("several frames; needed a still picture")
    if image.mode not in _MODES:
        raise ValueError(f"mode {image.mode}; needed at most 8 bits for each channel")


def _as_rgb(image: Image.Image) -> Image.Image:
    try:
        turned = ImageOps.exif_transpose(image)
    except (ArithmeticError, AttributeError, LookupError, TypeError, struct.error) as error:
        # A tag has a value of another type than Pillow writes.
        raise ValueError(f"broken EXIF data ({error})") from error
    if not turned.has_transparency_data:
        return turned.convert("RGB")
    layer = turned.convert("RGBA")
    white = Image.new("RGBA", layer.size, "white")
    return Image.alpha_composite(white, layer).convert("RGB")


def _scaled(image: Image.Image, kept_pixels: int) -> Image.Image:
    width, height = image.size
    if width * height <= kept_pixels:
        return image
    scale = (kept_pixels / (width * height)) ** 0.5
    width, height = max(1, int(width * scale)), max(1, int(height * scale))
    # Rounding may shorten the short side more.
    most = _LONGEST_SIDE * min(width, height)
    return image.resize((min(width, most), min(height, most)), Image.Resampling.BICUBIC)
