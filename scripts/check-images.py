"""Mutates the headers of valid JPEG and PNG files, and compares the pixels of Stratus with other decoders.

    check-images.py DECODER FOLDER [COUNT [SEED]]

DECODER is the example `decode_files` of stratus-data; COUNT files of each format are generated in FOLDER.
References are Pillow for both formats, libjpeg-turbo through simplejpeg and OpenCV for JPEG, and libpng
through OpenCV for PNG. A file is a disagreement if

- Stratus reads it and every reference rejects it,
- Stratus reads it and its pixels are not those of every reference that reads it, or its EXIF orientation is
  neither Pillow's nor OpenCV's,
- Stratus rejects it and every reference reads it, unless libjpeg-turbo warns that the image itself is
  damaged (entropy-coded data are missing or wrong, scans contradict each other): Stratus rejects these,
  others invent pixels.
"""

import collections
import io
import pathlib
import random
import re
import struct
import subprocess
import sys
import warnings
import zlib

import cv2
import numpy as np
import simplejpeg
from PIL import Image, ImageFile

# Warnings of libjpeg-turbo about invented pixels.
DAMAGE = (
    "premature end", "bad huffman code", "instead of rst", "inconsistent progression",
)
# It reports only the last warning, which may be about skipped entropy-coded data or about padding before a
# marker. Such a file may be read or rejected.
SKIPPED_BYTES = "extraneous bytes before marker 0xd[0-79]"
warnings.simplefilter("ignore")
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)


# Valid files.

def photograph(rng, height, width, channels):
    y, x = np.mgrid[0:height, 0:width]
    def wave():
        return np.sin(x / rng.uniform(2, 9) + rng.random()) + np.cos(y / rng.uniform(2, 9))

    waves = [wave() for _ in range(channels)]
    noise = np.random.default_rng(rng.randrange(1 << 30)).normal(0, 6, (height, width, channels))
    return np.clip(np.stack(waves, -1) * 60 + 128 + noise, 0, 255).astype(np.uint8)


def tiff(rng, orientation):
    """An EXIF block; integers of any width, any count."""
    little = rng.random() < 0.5
    end = "<" if little else ">"
    kind, form = rng.choice([(3, "H"), (4, "I"), (8, "h"), (9, "i"), (3, "H"), (4, "I")])
    count = rng.choice([1, 1, 1, 2, 3])
    entries = [(0x010F, 2, 4, b"abc\0"), (0x0131, 2, 3, b"xy\0\0")]
    values = struct.pack(end + form, orientation) * count
    before = rng.randrange(3)
    at = 8 + 2 + 12 * (before + 1) + 4
    here = values if len(values) <= 4 else struct.pack(end + "I", at)
    entries = entries[:before] + [(0x0112, kind, count, here.ljust(4, b"\0"))]
    body = b"".join(struct.pack(end + "HHI", tag, kind, count) + value for tag, kind, count, value in entries)
    head = (b"II*\0" if little else b"MM\0*") + struct.pack(end + "I", 8)
    rest = struct.pack(end + "I", 0) + (values if len(values) > 4 else b"")
    return head + struct.pack(end + "H", len(entries)) + body + rest


def good_jpeg(rng):
    channels = rng.choice([1, 3, 3, 3])
    pixels = photograph(rng, rng.randrange(1, 60), rng.randrange(1, 60), channels)
    image = Image.fromarray(pixels if channels == 3 else pixels[..., 0])
    options = {"quality": rng.randrange(40, 96), "progressive": rng.random() < 0.3}
    options["optimize"] = rng.random() < 0.3
    if channels == 3:
        options["subsampling"] = rng.randrange(3)
    if rng.random() < 0.4:
        options["exif"] = b"Exif\0\0" + tiff(rng, rng.randrange(1, 9))
    if rng.random() < 0.2:
        options["comment"] = b"a comment"
    if rng.random() < 0.2:
        options["icc_profile"] = bytes(200)
    if rng.random() < 0.2:
        options["restart_marker_blocks"] = rng.randrange(1, 5)
    out = io.BytesIO()
    image.save(out, "JPEG", **options)
    return out.getvalue()


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
PASSES = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]


def rows_of(samples, bits):
    """Rows of `samples` (height, width, channels), packed, without a filter."""
    out = bytearray()
    for row in samples.reshape(samples.shape[0], -1):
        out.append(0)
        if bits == 16:
            out += row.astype(">u2").tobytes()
        elif bits == 8:
            out += row.astype(np.uint8).tobytes()
        else:
            spread = (row[:, None].astype(np.uint8) >> np.arange(bits - 1, -1, -1)) & 1
            out += np.packbits(spread.reshape(-1)).tobytes()
    return bytes(out)


def good_png(rng):
    colour = rng.choice([0, 2, 3, 4, 6])
    bits = rng.choice({0: [1, 2, 4, 8, 16], 3: [1, 2, 4, 8]}.get(colour, [8, 16]))
    height, width, interlaced = rng.randrange(1, 40), rng.randrange(1, 40), rng.random() < 0.3
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    colours = rng.randrange(1, (1 << bits) + 1) if colour == 3 else 1 << bits
    samples = numbers.integers(0, colours, (height, width, SAMPLES[colour]))
    if interlaced:
        parts = [samples[y::down, x::right] for y, x, down, right in PASSES]
        data = b"".join(rows_of(part, bits) for part in parts if part.size)
    else:
        data = rows_of(samples, bits)
    chunks = [chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, interlaced))]
    if rng.random() < 0.3:
        chunks.append(chunk(b"gAMA", struct.pack(">I", 45455)))
    if colour == 3:
        chunks.append(chunk(b"PLTE", numbers.integers(0, 256, colours * 3, dtype=np.uint8).tobytes()))
        if rng.random() < 0.3:
            chunks.append(chunk(b"tRNS", bytes(range(rng.randrange(1, min(colours, 200) + 1)))))
    if colour in (0, 2) and rng.random() < 0.3:
        chunks.append(chunk(b"tRNS", bytes(2 * SAMPLES[colour])))
    if rng.random() < 0.4:
        chunks.append(chunk(b"eXIf", tiff(rng, rng.randrange(1, 9))))
    if rng.random() < 0.3:
        chunks.append(chunk(b"tEXt", b"Title\0x"))
    packed = zlib.compress(data, rng.randrange(10))
    cut = rng.randrange(len(packed) + 1) if rng.random() < 0.3 else len(packed)
    chunks += [chunk(b"IDAT", part) for part in (packed[:cut], packed[cut:]) if part]
    chunks.append(chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


# Mutations.

def segments(file):
    """Offsets and ends of the segments before the entropy-coded data."""
    at, found = 2, []
    while True:
        length = struct.unpack(">H", file[at + 2:at + 4])[0]
        found.append((at, at + 2 + length))
        at += 2 + length
        if file[found[-1][0] + 1] == 0xDA:
            return found


def some_bytes(rng, most):
    return bytes(rng.choice([0, 0, 0xFF, 7, rng.randrange(256)]) for _ in range(rng.randrange(1, most + 1)))


def mutate_jpeg(rng, file):
    parts = segments(file)
    header = [file[begin:end] for begin, end in parts]
    rest = file[parts[-1][1]:]
    at = rng.randrange(len(header))
    what = rng.choice(["stray", "stray", "fill", "twice", "drop", "swap", "byte", "byte", "length", "exif",
                       "exif", "padding", "end", "app", "zeros"])
    if what == "stray":
        header[at] = (some_bytes(rng, 6) if at else b"\xff" + some_bytes(rng, 3)) + header[at]
    elif what == "fill":
        header[at] = b"\xff" * rng.randrange(1, 9) + header[at]
    elif what == "twice":
        header.insert(at, header[at])
    elif what == "drop":
        del header[at]
    elif what == "swap":
        other = rng.randrange(len(header))
        header[at], header[other] = header[other], header[at]
    elif what == "byte":
        part = bytearray(header[at])
        part[rng.randrange(len(part))] = rng.choice([0, 1, 2, 8, 0xFF, rng.randrange(256)])
        header[at] = bytes(part)
    elif what == "length":
        part = bytearray(header[at])
        length = struct.unpack(">H", part[2:4])[0] + rng.choice([-2, -1, 1, 2, 20])
        part[2:4] = struct.pack(">H", max(0, length))
        header[at] = bytes(part)
    elif what == "exif":
        if rng.random() < 0.9:
            header = [part for part in header if not part[4:].startswith(b"Exif")]
        block = bytearray(b"Exif\0\0" + tiff(rng, rng.randrange(10)))
        if rng.random() < 0.5:
            block[rng.randrange(14, len(block))] = rng.choice([0, 1, 3, 4, 6, rng.randrange(256)])
        if rng.random() < 0.2:
            del block[rng.randrange(14, len(block)):]
        header.insert(0, b"\xff\xe1" + struct.pack(">H", len(block) + 2) + bytes(block))
    elif what == "padding":
        rest += some_bytes(rng, 3) * rng.randrange(1, 3000)
    elif what == "end":
        rest = rest[:-2] + some_bytes(rng, 4) + rest[-2:]
    elif what == "app":
        data = some_bytes(rng, 40)
        kind = bytes([rng.randrange(0xE0, 0xFF)])
        header.insert(at, b"\xff" + kind + struct.pack(">H", len(data) + 2) + data)
    else:
        rest = rest[:rng.randrange(len(rest))] + b"\0" * rng.randrange(4)
    return file[:2] + b"".join(header) + rest, what


def mutate_png(rng, file):
    at, chunks = 8, []
    while at < len(file):
        end = at + 12 + struct.unpack(">I", file[at:at + 4])[0]
        chunks.append(file[at:end])
        at = end
    at = rng.randrange(len(chunks))
    what = rng.choice(["unknown", "unknown", "twice", "drop", "swap", "byte", "byte", "sum", "length", "exif",
                       "exif", "padding", "cut", "empty"])
    if what == "unknown":
        kind = bytes(rng.choice(b"abcxyz") for _ in range(4))
        kind = kind[:2] + kind[2:3].upper() + kind[3:]
        if rng.random() < 0.2:
            kind = kind[:1].upper() + kind[1:]
        chunks.insert(at, chunk(kind, some_bytes(rng, 30)))
    elif what == "twice":
        chunks.insert(at, chunks[at])
    elif what == "drop":
        del chunks[at]
    elif what == "swap":
        other = rng.randrange(len(chunks))
        chunks[at], chunks[other] = chunks[other], chunks[at]
    elif what == "byte":
        kind, data = chunks[at][4:8], bytearray(chunks[at][8:-4])
        if data:
            data[rng.randrange(len(data))] = rng.choice([0, 1, 2, 3, 4, 8, 16, rng.randrange(256)])
        chunks[at] = chunk(kind, bytes(data))
    elif what == "sum":
        chunks[at] = chunks[at][:-1] + bytes([chunks[at][-1] ^ 1])
    elif what == "length":
        length = struct.unpack(">I", chunks[at][:4])[0] + rng.choice([-1, 1, 4, 1 << 31])
        chunks[at] = struct.pack(">I", length & 0xFFFFFFFF) + chunks[at][4:]
    elif what == "exif":
        block = bytearray(tiff(rng, rng.randrange(10)))
        if rng.random() < 0.5:
            block[rng.randrange(8, len(block))] = rng.choice([0, 1, 3, 4, 6, rng.randrange(256)])
        if rng.random() < 0.9:
            chunks = [one for one in chunks if one[4:8] != b"eXIf"]
        chunks.insert(rng.randrange(1, len(chunks)), chunk(b"eXIf", bytes(block)))
    elif what == "padding":
        chunks.append(some_bytes(rng, 3) * rng.randrange(1, 3000))
    elif what == "cut":
        file = b"".join(chunks)
        return file[:8] and b"\x89PNG\r\n\x1a\n" + file[:rng.randrange(len(file))], what
    else:
        chunks.insert(at, chunk(rng.choice([b"IDAT", b"tEXt", b"PLTE", b"tRNS"]), b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks), what


# References.

def by_pillow(file):
    """Pixels (height, width, channels), or the reason for the rejection."""
    try:
        image = Image.open(io.BytesIO(file))
        image.load()
        return pixels_of(image)
    except Exception as error:  # noqa: BLE001: any exception rejects the file
        return f"{type(error).__name__}: {error}"


def pixels_of(image):
    if image.mode == "CMYK":
        inks = np.asarray(image).astype(np.uint32)
        return ((255 - inks[..., :3]) * (255 - inks[..., 3:]) + 127) // 255
    if image.mode in ("I;16", "I;16B", "I"):
        return (np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8)[..., None]
    if image.mode in ("1", "L", "LA"):
        return np.asarray(image.convert("L"))[..., None]
    if image.mode == "RGBA":
        return np.asarray(image)[..., :3]
    return np.asarray(image.convert("RGB"))


def orientation_by_pillow(file):
    """The orientation; None if Pillow reads no integer or rejects a damaged block."""
    try:
        with warnings.catch_warnings(record=True) as given_up:
            warnings.simplefilter("always")
            value = Image.open(io.BytesIO(file)).getexif().get(0x0112, 1)
    except Exception:  # noqa: BLE001
        return None
    value = value[0] if isinstance(value, tuple) and value else value
    if given_up or type(value) is not int:
        return None
    return value if 1 <= value <= 8 else 1


TURNED = {
    1: lambda image: image, 2: lambda image: image[:, ::-1], 3: lambda image: image[::-1, ::-1],
    4: lambda image: image[::-1], 5: lambda image: image.swapaxes(0, 1),
    6: lambda image: image.swapaxes(0, 1)[:, ::-1], 7: lambda image: image.swapaxes(0, 1)[::-1, ::-1],
    8: lambda image: image.swapaxes(0, 1)[::-1],
}


def turned_alike_by_opencv(file, orientation):
    """True if OpenCV rotates an image by this orientation."""
    data = np.frombuffer(file, np.uint8)
    turned = cv2.imdecode(data, cv2.IMREAD_COLOR)
    stored = cv2.imdecode(data, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    return turned is not None and stored is not None and np.array_equal(TURNED[orientation](stored), turned)


def by_turbo(file):
    """Pixels or the reason for the rejection, and the warning, if any."""
    try:
        _, _, space, _ = simplejpeg.decode_jpeg_header(file, strict=False)
        grey = space == "Gray"
        pixels = simplejpeg.decode_jpeg(file, "Gray" if grey else "RGB", strict=False)
    except (ValueError, KeyError) as error:
        return str(error), ""
    try:
        simplejpeg.decode_jpeg(file, "Gray" if grey else "RGB", strict=True)
    except ValueError as error:
        return pixels, str(error)
    return pixels, ""


def by_opencv(file):
    """By the libpng or the libjpeg-turbo of OpenCV."""
    try:
        pixels = cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        return str(error)
    if pixels is None:
        return "refused"
    if pixels.dtype == np.uint16:
        pixels = (pixels >> 8).astype(np.uint8)
    if pixels.ndim == 2:
        return pixels[..., None]
    return pixels[..., 2::-1]


def same(line, pixels):
    height, width, channels, sum_of, _ = map(int, line.split()[1:])
    pixels = np.ascontiguousarray(pixels, dtype=np.uint8)
    if pixels.shape[:2] == (height, width) and channels == 1 and pixels.shape[2] == 3:
        # Some decoders return three channels for grey images.
        pixels = np.ascontiguousarray(pixels[..., :1])
    if pixels.shape[:2] == (height, width) and channels == 3 and pixels.shape[2] == 1:
        pixels = np.repeat(pixels, 3, axis=2)
    return pixels.shape == (height, width, channels) and zlib.crc32(pixels.tobytes()) == sum_of


def judge(kind, file, line):
    """The outcome of a file, and the disagreement of the decoders, or None."""
    pillow, warning = by_pillow(file), ""
    if kind == "jpeg":
        other, warning = by_turbo(file)
    else:
        other = by_opencv(file)
    reads = [found for found in (pillow, other) if not isinstance(found, str)]
    damaged = any(re.search(text, warning.lower()) for text in DAMAGE)
    if line.startswith("no"):
        if len(reads) < 2:
            return "rejected by both", None
        if damaged or re.search(SKIPPED_BYTES, warning):
            return "rejected as damaged, with a warning of libjpeg-turbo", None
        return "rejected only by Stratus", f"rejected ({line[3:]}), others read it ({warning})"
    if not line.startswith("ok"):
        return "no answer", f"no answer: {line}"
    if not reads and kind == "jpeg" and not isinstance(by_opencv(file), str):
        # Pillow parses headers itself first, and TurboJPEG rejects unknown subsampling.
        reads = [by_opencv(file)]
    if not reads:
        return "read only by Stratus", f"read, others reject it ({pillow}; {other})"
    # Bytes after the last row may look like a segment that extends past the end marker.
    if damaged and "Premature end of JPEG file" not in warning:
        return "read though damaged", f"read, and libjpeg-turbo warns: {warning}"
    if not all(same(line, pixels) for pixels in reads):
        return "other pixels", f"other pixels ({[same(line, p) for p in reads]}, {[p.shape for p in reads]})"
    orientation, expected = int(line.split()[-1]), orientation_by_pillow(file)
    # Of several EXIF blocks, libpng keeps the first and Pillow the last; in JPEG files, Pillow joins them.
    single = file.count(b"eXIf" if kind == "png" else b"Exif\0\0") == 1
    if single and expected is not None and not isinstance(pillow, str) and orientation != expected \
            and not turned_alike_by_opencv(file, orientation):
        return "another orientation", f"orientation {orientation}, Pillow says {expected}"
    return "equal", None


def check(kind, make, mutate, decoder, folder, count, seed):
    rng = random.Random(f"{kind} {seed}")
    folder = folder / kind
    folder.mkdir(parents=True, exist_ok=True)
    paths, kinds = [], []
    for number in range(count):
        file, what = mutate(rng, make(rng))
        if rng.random() < 0.2:
            try:
                file, more = mutate(rng, file)
                what = f"{what}+{more}"
            except (IndexError, struct.error, ValueError):
                pass
        path = folder / f"{number}.bin"
        path.write_bytes(file)
        paths.append(path)
        kinds.append(what)
    listed = folder / "list.txt"
    listed.write_text("".join(f"{path}\n" for path in paths))
    ran = subprocess.run([decoder, listed], stdout=subprocess.PIPE, text=True, check=False)
    lines = ran.stdout.splitlines()
    if ran.returncode != 0 or len(lines) != count:
        sys.exit(f"check-images: decoder exited with {ran.returncode} after {len(lines)} of {count} files")
    outcomes, disagreements = collections.Counter(), []
    for path, what, line in zip(paths, kinds, lines, strict=True):
        outcome, problem = judge(kind, path.read_bytes(), line)
        outcomes[outcome] += 1
        if problem:
            disagreements.append(f"{path} ({what}): {problem}")
    print(f"{kind}: {count} files, {len(disagreements)} disagreements")
    for outcome, number in outcomes.most_common():
        print(f"  {number:6} {outcome}")
    for text in disagreements[:60]:
        print(f"  {text}")
    return not disagreements


def main():
    if not 3 <= len(sys.argv) <= 5:
        sys.exit(__doc__)
    decoder, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    count, seed = (int(text) for text in [*sys.argv[3:], *["10000", "1"][len(sys.argv) - 3:]])
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    agree = [
        check("jpeg", good_jpeg, mutate_jpeg, decoder, folder, count, seed),
        check("png", good_png, mutate_png, decoder, folder, count, seed),
    ]
    sys.exit(0 if all(agree) else 1)


if __name__ == "__main__":
    main()
