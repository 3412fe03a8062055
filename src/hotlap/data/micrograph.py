"""Pictures to find objects in, with all of their bits: PNG, JPEG, TIFF, BMP and WebP, grey or colour, page by page.

Alpha is dropped, a palette becomes colour, and a photograph is turned as its EXIF says, so results lie on the picture
as viewers show it. Refused, with the file's name: what is no picture or is damaged, animations, CMYK, numbers that are
not finite, and more pixels than allowed, which is known before anything is decoded.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hotlap.base.errors import DataError, TooLarge
from hotlap.data.picture_file import SUFFIXES as USUAL
from hotlap.data.picture_file import PictureTooLarge, UnreadablePicture, require_pillow
from hotlap.data.png import Rows, is_plain, needs_all_bits, read_png
from hotlap.data.tiff import (
    BITS,
    COLORMAP,
    COMPRESSION,
    EXTRA_SAMPLES,
    NONE,
    ORIENTATION,
    PHOTOMETRIC,
    PLANAR,
    Page,
    picture_pages,
)

SUFFIXES = (*USUAL, ".gif")
_OWN_TIFFS = (".lsm", ".stk", ".svs", ".ndpi", ".scn", ".qptiff")
"""Endings of TIFFs whose pages are not each a picture: smaller copies that do not say so, planes behind the page."""
MICROSCOPES = (
    ".czi", ".nd2", ".lif", ".oib", ".oif", ".oir", ".ims", ".vsi", ".zvi", ".dv", ".mrxs", ".dcm", ".jp2", ".heic",
    *_OWN_TIFFS,
)  # fmt: skip
"""Endings of pictures that are not read: a folder's user is told of them, and not of its notes and tables."""
MOST_PIXELS = 1_000_000_000
_DAMAGE = (
    OSError, SyntaxError, ValueError, EOFError, ArithmeticError, IndexError, KeyError, TypeError, MemoryError,
    struct.error, zlib.error,
)  # fmt: skip
_ALPHA = (1, 2)
"""Kinds of an extra sample in a TIFF that are opacity; others are a channel of their own, or unsaid."""
_WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB, _PALETTE, _YCBCR = 0, 1, 2, 3, 6
_OTHERS = {5: "CMYK", 8: "LAB", 9: "LAB", 10: "LAB"}
"""Kinds of colours in a TIFF that would be taken for RGB, or for grey with more."""
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "GIF", "WEBP")
_MODES = {"L": 1, "LA": 1, "RGB": 3, "RGBA": 3, "I;16": 1, "I;16B": 1, "I": 1, "F": 1}


@dataclass(frozen=True)
class Picture:
    """One picture, or one page of a file that has several."""

    path: Path
    page: int | None
    """From 0; None where the file holds one picture."""
    pixels: np.ndarray  # [H, W, C], C is 1 or 3
    """Samples as the file has them: whole numbers of 8 to 64 bits, or floats."""
    num_pages: int = 1
    """Pictures in the file."""

    @property
    def name(self) -> str:
        """What results of it are called: the file's stem, and the page if there are several."""
        return page_name(self.path.stem, self.page)


def page_name(stem: str, page: int | None) -> str:
    """The name of a page's results."""
    return stem if page is None else f"{stem}_page{page:04d}"


Hear = Callable[[UnreadablePicture], None]


def read_pictures(
    path: Path, *, most_pixels: int = MOST_PIXELS, skip: frozenset[int] = frozenset(), begin: int = 0,
    hear: Hear | None = None, rows: Rows | None = None,
) -> Iterator[Picture]:  # fmt: skip
    """The pictures of a file, one after the other; pages to ``skip``, and the first ``begin`` others, are not decoded.

    ``hear`` is told of each page among several that cannot be read, and the others follow; without it, that is raised.
    With ``rows``, which is faster than Pillow's, plain PNGs are not read by that.
    """
    if path.suffix.lower() in _OWN_TIFFS:
        raise UnreadablePicture(str(path), "it is a microscope's own kind of TIFF; save what it shows as plain TIFF")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UnreadablePicture(str(path), error.strerror or str(error)) from error
    yield from pictures_in(content, path, most_pixels=most_pixels, skip=skip, begin=begin, hear=hear, rows=rows)


def pictures_in(
    content: bytes, path: Path, *, most_pixels: int = MOST_PIXELS, skip: frozenset[int] = frozenset(), begin: int = 0,
    hear: Hear | None = None, rows: Rows | None = None,
) -> Iterator[Picture]:  # fmt: skip
    """The pictures in a file's bytes; ``path`` is what they are called, and is not opened."""
    try:
        if content[:4] in _TIFF:
            yield from _read_tiff(content, path, most_pixels, skip, begin, hear)
        elif begin == 0:
            yield Picture(path, None, _checked(_read_other(content, path, most_pixels, rows)))
    except UnreadablePicture:
        raise
    except _damage() as error:
        raise _unreadable(path, error) from error


def numbers_in(content: bytes, path: Path) -> np.ndarray:  # [H, W, C]
    """The samples of a picture whose values are numbers, as labels are: a palette's are its places, not its colours."""
    try:
        if content[:4] in _TIFF:
            (_, page), *others = picture_pages(content, path)
            if others:
                raise ValueError(f"it has {1 + len(others)} pages")
            _check_size(page.width, page.height, MOST_PIXELS)
            if (samples := page.decode()) is not None:
                return _turned(samples, page.tag(ORIENTATION, 1))
        if not content:
            raise ValueError("the file is empty")
        image = _opened(content, MOST_PIXELS)
        if getattr(image, "n_frames", 1) > 1:
            raise ValueError(f"it has {image.n_frames} frames")
        if image.format == "JPEG":
            raise ValueError("it is a JPEG, which changes numbers a little; export it as PNG or TIFF")
        return np.atleast_3d(np.asarray(image))[..., : _MODES.get(image.mode)]
    except _damage() as error:
        raise _unreadable(path, error) from error


def _damage() -> tuple[type[Exception], ...]:
    """What readers raise for wrong files; Pillow's limit is met by frames that claim more than their picture."""
    return (DataError, *_DAMAGE, require_pillow().DecompressionBombError)


def _unreadable(path: Path, error: BaseException, where: str = "") -> UnreadablePicture:
    """The error that names a file, for whatever is wrong with it or with a part of it."""
    said = getattr(error, "what", None) or getattr(error, "strerror", None) or str(error) or type(error).__name__
    return (PictureTooLarge if isinstance(error, TooLarge) else UnreadablePicture)(str(path), where + said)


def _read_other(content: bytes, path: Path, most_pixels: int, rows: Rows | None) -> np.ndarray:
    """A PNG, JPEG or BMP."""
    from PIL import ImageOps

    if not content:
        raise ValueError("the file is empty")
    image = _opened(content, most_pixels, "; save it as TIFF" if path.suffix.lower() in MICROSCOPES else "")
    if getattr(image, "n_frames", 1) > 1 and image.format != "MPO":  # a photograph with its preview
        raise ValueError(f"it is animated: {image.n_frames} frames")
    if needs_all_bits(content) or (rows is not None and is_plain(content)):
        samples = read_png(content, rows)
        return samples[..., : 1 if samples.shape[2] < 3 else 3]
    image.load()
    ImageOps.exif_transpose(image, in_place=True)  # of most pictures a plain copy would be made
    return _samples(image)


def _opened(content: bytes, most_pixels: int, remedy: str = "") -> Any:
    """The picture as its header describes it, once it is known not to be too large; ``remedy`` is for what is none.

    ``Image.open`` has a limit of its own, for the whole process; asking each format's reader leaves only ours.
    """
    image_module = require_pillow()
    image_module.init()
    for name in _FORMATS:
        make, accepts = image_module.OPEN[name]
        if accepts(content[:16]) is True:
            try:
                image = make(io.BytesIO(content), "")
            except SyntaxError as error:  # "not identified by this driver" is all that Pillow may say
                raise ValueError(f"its {name} header is damaged: {error}") from error
            except OSError as error:  # of a WebP that is cut short: "could not create decoder object"
                raise ValueError(f"its {name} data are cut short or damaged: {error}") from error
            _check_size(image.width, image.height, most_pixels)
            return image
    raise ValueError(f"no known picture format{remedy}")


def _check_size(width: int, height: int, most_pixels: int) -> None:
    if width < 1 or height < 1:
        raise ValueError(f"it is {width}x{height} pixels")
    if width * height > most_pixels:
        raise TooLarge(f"{width}x{height} pixels are more than most_pixels = {most_pixels}")


def _samples(image: Any) -> np.ndarray:  # [H, W, C]
    """A loaded picture's samples."""
    if image.mode in ("P", "PA"):
        image = image.convert("RGBA" if "transparency" in image.info else "RGB")
    elif image.mode == "1":
        image = image.convert("L")
    if image.mode not in _MODES:
        raise ValueError(f"its colours are {image.mode}, not grey or RGB")
    samples = np.atleast_3d(np.asarray(image))[..., : _MODES[image.mode]]
    return samples.astype(samples.dtype.newbyteorder("="), copy=False)


def _read_tiff(
    content: bytes, path: Path, most_pixels: int, skip: frozenset[int], begin: int, hear: Hear | None
) -> Iterator[Picture]:
    pages = picture_pages(content, path)
    several = len(pages) > 1
    for number, page in [(number, page) for number, page in pages if number not in skip][begin:]:
        try:
            _check_size(page.width, page.height, most_pixels)
            pixels = _checked(_tiff_samples(page, number, most_pixels))
        except _damage() as error:
            bad = _unreadable(path, error, f"page {number}: " if several else "")
            if hear is None or not several:
                raise bad from error
            hear(bad)
            continue
        yield Picture(path, number if several else None, pixels, len(pages))


def _tiff_samples(page: Page, number: int, most_pixels: int) -> np.ndarray:  # [H, W, C]
    colours = page.tag(PHOTOMETRIC, 1)
    if colours in _OTHERS:
        raise ValueError(f"its colours are {_OTHERS[colours]}, not grey or RGB")
    samples = page.decode() if colours != _YCBCR else None
    if samples is None:
        deepest = max(page.tags.get(BITS, (1,)))
        if deepest > 8 and page.tag(COMPRESSION, 1) in NONE:
            raise ValueError(f"its samples of {deepest} bits are not read; save it with 8 or 16, or as float")
        if deepest > 8 and not _keeps_bits(page, colours):
            raise ValueError(f"its compression {page.tag(COMPRESSION, 1)} is not read with {deepest} bits a sample")
        page.check_whole()
        image = _opened(page.content, most_pixels)
        image.seek(number)
        if not image.mode.startswith(("1", "L", "P", "RGB", "I;16")):
            raise ValueError(f"its compression {page.tag(COMPRESSION, 1)} is not read with mode {image.mode}")
        return _samples(image)  # Pillow has turned it
    orientation = page.tag(ORIENTATION, 1)
    if colours == _PALETTE:
        table = np.array(page.tags.get(COLORMAP, ()), np.uint16).reshape(3, -1)
        return _turned((table >> 8).astype(np.uint8)[:, samples[..., 0]].transpose(1, 2, 0), orientation)
    if samples.shape[2] not in (1, 2, 3, 4) or (samples.shape[2] == 4 and colours != 2):
        raise ValueError(f"it has {samples.shape[2]} channels, not 1 or 3")
    if samples.shape[2] == 2 and page.tag(EXTRA_SAMPLES, 0) not in _ALPHA:
        raise ValueError("it has 2 channels, neither of which is said to be alpha; save the one to look at by itself")
    samples = samples[..., : 1 if samples.shape[2] < 3 else 3]
    return _turned(~samples if colours == _WHITE_IS_ZERO and samples.dtype.kind == "u" else samples, orientation)


def _keeps_bits(page: Page, colours: int) -> bool:
    """Whether Pillow gives a page's very samples: bytes, or grey of 16 bits. Others it cuts down or mixes up unsaid."""
    kind = page.dtype()
    if kind is None or kind.kind != "u" or page.tag(PLANAR, 1) != 1:
        return False
    grey = page.samples == 1 and colours == _BLACK_IS_ZERO and kind.itemsize <= 2
    return grey or (page.samples == 3 and colours == _RGB and kind.itemsize == 1)


def _turned(samples: np.ndarray, orientation: int) -> np.ndarray:
    """The picture as it is meant to be seen."""
    if orientation in (5, 6, 7, 8):
        samples = samples.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        samples = samples[:, ::-1]
    if orientation in (3, 4, 7, 8):
        samples = samples[::-1]
    return np.ascontiguousarray(samples)


def _checked(samples: np.ndarray) -> np.ndarray:
    if samples.dtype.kind == "f":
        bad = int(np.count_nonzero(~np.isfinite(samples)))
        if bad:
            raise ValueError(f"{bad} of its {samples.size} numbers are NaN or infinite")
    return samples
