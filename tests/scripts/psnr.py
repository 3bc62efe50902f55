"""psnr.py RECORD PICTURE: the peak signal-to-noise ratio in dB of two RGB PNG files of one size, whose
rows have no filter (all that examples/vulkan_frame.h writes); "inf" for equal ones."""
import math
import struct
import sys
import zlib


def pixels(path):
    data = open(path, "rb").read()
    assert data[:8] == b"\x89PNG\r\n\x1a\n", path
    at, packed = 8, b""
    while at < len(data):
        size, name = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size:at + 12 + size])[0] == zlib.crc32(name + body), path
        if name == b"IHDR":
            width, height, depth, colours = struct.unpack(">IIBB", body[:10])
            assert (depth, colours) == (8, 2), path
        packed += body if name == b"IDAT" else b""
        at += 12 + size
    rows, row = zlib.decompress(packed), 1 + 3 * width
    assert len(rows) == row * height and not any(rows[::row]), path
    return b"".join(rows[i + 1:i + row] for i in range(0, len(rows), row))


def main():
    record, picture = pixels(sys.argv[1]), pixels(sys.argv[2])
    assert len(record) == len(picture)
    squares = sum((a - b) ** 2 for a, b in zip(record, picture)) / len(record)
    print("%.1f" % (20 * math.log10(255) - 10 * math.log10(squares)) if squares else "inf")


main()
