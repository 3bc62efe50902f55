#!/usr/bin/env python3
"""Writes tests/fuzz/corpus/picture, and prints what tests/data/test_pictures.c asks of Pillow: hashes of
resized pictures. Needs Pillow; a run gives the same files again with the same version of it.

Pixels are a formula that the tests know, so what a PNG file holds needs no record:
value(x, y, c) = (36 x + 11 y + 50 c) mod 256.
"""

import os
import struct
import sys
import zlib

from PIL import Image

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "tests/fuzz/corpus/picture")
WIDTH, HEIGHT = 9, 7


def value(x, y, c):
    return (36 * x + 11 * y + 50 * c) % 256


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(depth, color, rows, more=b"", interlace=0):
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, depth, color, 0, 0, interlace)
    data = b"".join(b"\0" + row for row in rows)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + more + chunk(b"IDAT", zlib.compress(data))
            + chunk(b"IEND", b""))


def packed(depth):
    """Rows of grey with `depth` bits: the highest of each value."""
    for y in range(HEIGHT):
        bits = "".join(format(value(x, y, 0) >> 8 - depth, f"0{depth}b") for x in range(WIDTH))
        bits += "0" * (-len(bits) % 8)
        yield bytes(int(bits[i:i + 8], 2) for i in range(0, len(bits), 8))


def plain(channels, bytes_each=1):
    for y in range(HEIGHT):
        yield bytes(value(x, y, c) for x in range(WIDTH) for c in range(channels) for _ in range(bytes_each))


def write(name, data):
    with open(os.path.join(FOLDER, name), "wb") as f:
        f.write(data)


def write_png():
    write("grey1.png", png(1, 0, packed(1)))
    write("grey2.png", png(2, 0, packed(2)))
    write("grey4.png", png(4, 0, packed(4)))
    write("grey8.png", png(8, 0, plain(1)))
    write("grey16.png", png(16, 0, plain(1, 2)))  # v * 257: 8 bits of it are v again
    write("alpha8.png", png(8, 4, plain(2)))
    write("rgb8.png", png(8, 2, plain(3)))
    write("rgb16.png", png(16, 2, plain(3, 2)))
    write("rgba8.png", png(8, 6, plain(4)))
    palette = bytes(value(i, 0, c) for i in range(64) for c in range(3))
    places = [bytes((x + y * WIDTH) % 64 for x in range(WIDTH)) for y in range(HEIGHT)]
    write("palette.png", png(8, 3, places, chunk(b"PLTE", palette)))
    write("palette-clear.png", png(8, 3, places, chunk(b"PLTE", palette) + chunk(b"tRNS", bytes(range(64)))))
    picture = Image.frombytes("RGB", (WIDTH, HEIGHT), b"".join(plain(3)))
    whole = png(8, 2, plain(3))
    write("cut.png", whole[:-30])
    write("wide.png", whole[:16] + struct.pack(">I", 1 << 20) + whole[20:])
    write("flipped.png", whole[:50] + bytes([whole[50] ^ 4]) + whole[51:])
    write("header.png", whole[:20])
    return picture


def smooth(mode, size=(16, 12)):
    picture = Image.new("RGB", size)
    picture.putdata([(10 * x + 20, 12 * y + 30, 5 * (x + y) + 40) for y in range(size[1]) for x in range(size[0])])
    return picture.convert(mode)


def write_jpeg():
    for name, mode, more in (("grey.jpg", "L", {}), ("rgb444.jpg", "RGB", {"subsampling": 0}),
                             ("rgb420.jpg", "RGB", {"subsampling": 2}),
                             ("progressive.jpg", "RGB", {"progressive": True, "subsampling": 0}),
                             ("cmyk.jpg", "CMYK", {})):
        smooth(mode).save(os.path.join(FOLDER, name), quality=95, **more)
    with open(os.path.join(FOLDER, "rgb444.jpg"), "rb") as f:
        whole = f.read()
    write("cut.jpg", whole[:len(whole) - 40])
    write("header.jpg", whole[:30])
    write("text.png", b"no picture\n")


def fnv(data):
    h = 14695981039346656037
    for b in data:
        h = (h ^ b) * 1099511628211 % (1 << 64)
    return h


def resized(picture, size, box=None):
    return fnv(picture.resize(size, Image.Resampling.BILINEAR, box=box).tobytes())


def main():
    os.makedirs(FOLDER, exist_ok=True)
    picture = write_png()
    write_jpeg()
    for size in ((4, 3), (20, 11), (5, 20), (1, 1), (9, 3)):
        print(f"    {{{size[0]}, {size[1]}, 0x{resized(picture, size):016x}u}}, /* resized */")
    # The middle with the proportions of 4 x 4, and of 6 x 2.
    print(f"    crop 4 x 4: 0x{resized(picture, (4, 4), (1, 0, 8, 7)):016x}u")
    print(f"    crop 6 x 2: 0x{resized(picture, (6, 2), (0, 2, 9, 5)):016x}u")
    print(f"    grey of rgb8: 0x{fnv(picture.convert('L').tobytes()):016x}u")
    jpeg = Image.open(os.path.join(FOLDER, "rgb444.jpg"))
    print(f"    rgb444.jpg: 0x{fnv(jpeg.tobytes()):016x}u")


if __name__ == "__main__":
    sys.exit(main())
