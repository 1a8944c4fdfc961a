#!/usr/bin/env python3
"""Renders the font of contact sheets, from Source Sans Pro (SIL Open Font License 1.1).

    python3 -m pip install pillow==12.0.0
    python3 -m pip download --no-deps font-source-sans-pro==0.0.1
    python3 scripts/make-font.py font_source_sans_pro-0.0.1-py3-none-any.whl

Writes crates/stratus-data/src/contact_sheet/font.bin and its licence, font-licence.txt. The program needs
neither this script nor the font. The file is compressed by zlib. Numbers have one byte, or two (little
endian) where it says so:

    number of letters (2)
    code points, ascending (2 each)
    for each size:
        height of a line, rows above the baseline
        for each letter: advance, columns before its box + 128, rows above its box, width, height,
                         and its coverage 0 to 15 from top left, two pixels per byte, the first in the high
                         half
"""
import hashlib
import io
import pathlib
import struct
import sys
import zipfile
import zlib

from PIL import ImageFont

HERE = pathlib.Path(__file__).resolve().parent.parent
OUT = HERE / "crates/stratus-data/src/contact_sheet"
SHA256 = "2250396f565a0fea35726e56059216d1d5d75071d64d075ebdfec183b4b85765"
FOLDER = "font_source_sans_pro/files/"
# Captions and titles, in pixels.
SIZES = (15, 21)
# Basic Latin, Latin-1, Latin Extended-A and B, Greek, Cyrillic, more letters of Welsh and German,
# punctuation, the euro, arrows, mathematical signs.
RANGES = (
    (0x20, 0x7E), (0xA0, 0x24F), (0x386, 0x3CE), (0x400, 0x45F), (0x490, 0x491), (0x1E80, 0x1E85),
    (0x1E9E, 0x1E9E), (0x1EF2, 0x1EF3), (0x2010, 0x2027), (0x2030, 0x203A), (0x20AC, 0x20AC),
    (0x2190, 0x2193), (0x2212, 0x2212), (0x2260, 0x2265),
)
# Drawn as nothing or as a hyphen by other programs.
SOFT_HYPHEN = 0xAD


def letters(font):
    """The code points that the font has."""
    missing = bytes(font.getmask("\U0010ffff"))
    found = []
    for first, last in RANGES:
        for point in range(first, last + 1):
            if point != SOFT_HYPHEN and bytes(font.getmask(chr(point))) != missing:
                found.append(point)
    return found


def rendered(font, point):
    """The letter with its metrics."""
    letter = chr(point)
    ascent, _ = font.getmetrics()
    advance = round(font.getlength(letter))
    mask, (left, top) = font.getmask2(letter, mode="L", anchor="ls")
    width, height = mask.size
    pixels = [min(15, (value + 8) // 17) for value in bytes(mask)]
    # Crop rows and columns without coverage.
    rows = [pixels[row * width:(row + 1) * width] for row in range(height)]
    top += ascent
    while rows and not any(rows[0]):
        rows.pop(0)
        top += 1
    while rows and not any(rows[-1]):
        rows.pop()
    while rows and rows[0] and not any(row[0] for row in rows):
        rows = [row[1:] for row in rows]
        left += 1
    while rows and rows[0] and not any(row[-1] for row in rows):
        rows = [row[:-1] for row in rows]
    flat = [value for row in rows for value in row]
    width, height = (len(rows[0]), len(rows)) if rows else (0, 0)
    if not rows:
        left, top = 0, 0
    assert top >= 0, letter
    flat += [0] * (len(flat) % 2)
    packed = bytes(high << 4 | low for high, low in zip(flat[::2], flat[1::2]))
    return bytes([advance, left + 128, top, width, height]) + packed


def main():
    wheel = pathlib.Path(sys.argv[1]).read_bytes()
    if hashlib.sha256(wheel).hexdigest() != SHA256:
        sys.exit("another file than font-source-sans-pro 0.0.1")
    archive = zipfile.ZipFile(io.BytesIO(wheel))
    regular = archive.read(FOLDER + "SourceSansPro-Regular.ttf")

    def opened(size):
        return ImageFont.truetype(io.BytesIO(regular), size, layout_engine=ImageFont.Layout.BASIC)

    points = letters(opened(48))
    data = struct.pack("<H", len(points)) + b"".join(struct.pack("<H", point) for point in points)
    for size in SIZES:
        font = opened(size)
        ascent, descent = font.getmetrics()
        glyphs = b"".join(rendered(font, point) for point in points)
        data += bytes([ascent + descent, ascent]) + glyphs
    (OUT / "font.bin").write_bytes(zlib.compress(data, 9))
    (OUT / "font-licence.txt").write_bytes(archive.read(FOLDER + "LICENSE.txt").replace(b"\r\n", b"\n"))
    print(f"{len(points)} letters, {(OUT / 'font.bin').stat().st_size} bytes")


main()
