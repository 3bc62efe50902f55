"""Reads the logs of runs, for tools/view/dtplot and tools/view/dtboard: a folder of dt_run_log (scalars.csv,
scalars.jsonl, or TensorBoard's event files), or such a file."""

import csv
import io
import json
import math
import os
import stat
import struct

FILES = ("scalars.csv", "scalars.jsonl")
RECORD_MOST = 1 << 24  # bytes of an event that is looked into: larger ones hold pictures
HEAD_MOST = 1 << 16  # bytes of a first line


class Bad(Exception):
    """What is wrong with a file: its text names file and line."""


def number(text, where):
    try:
        return float(text)
    except (TypeError, ValueError):
        raise Bad(f"{where}: {str(text)[:40]!r} is not a number") from None


def whole(text, where):
    try:
        value = int(text)  # 64 bits are more than a float has
    except (TypeError, ValueError):
        value = number(text, where)
    if not 0 <= value < 2 ** 64:
        raise Bad(f"{where}: {str(text)[:40]!r} is not a step")
    return int(value)


def text_from(file, start):
    """What follows the first end of a line from there on; from 0 on all of it."""
    if start:
        file.seek(start - 1)
        file.readline()
    return io.TextIOWrapper(file, "utf-8", newline="")


def place(path, start, line):
    return f"{path}: line {line} after byte {start}" if start else f"{path}:{line}"


def read_csv(path, start):
    with open(path, "rb") as file:
        first = csv.reader([file.readline(HEAD_MOST).decode()]) if start else None
        rows = csv.reader(text_from(file, start))
        head = next(first or rows, None)
        if head is None:
            return
        if not {"step", "name", "value"} <= set(head):
            raise Bad(f"{path}: its first line names no step, name and value")
        step, name, value = (head.index(key) for key in ("step", "name", "value"))
        for row in rows:
            if len(row) != len(head):
                continue  # cut off by a crash
            where = place(path, start, rows.line_num)
            yield row[name], whole(row[step], where), number(row[value], where)


def read_json(path, start):
    with open(path, "rb") as file:
        for at, line in enumerate(text_from(file, start), 1):
            try:
                row = json.loads(line)
            except ValueError:
                continue  # cut off by a crash
            if "value" in row:
                where = place(path, start, at)
                yield row["name"], whole(row["step"], where), number(row["value"], where)


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise IndexError  # as at the end: not a whole record


def fields(data):
    """(number, value) of a message of protocol buffers; values of fixed size are bytes."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(kind)
            if size is None:
                size, at = varint(data, at)
            value, at = data[at:at + size], at + size
        yield key >> 3, value


def checksum(data):
    """TFRecord's: CRC32C, turned by 15 bits, plus a constant."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def next_record(data):
    """Where the first record begins in a part of an event file: its length has a checksum."""
    zeros = data.find(bytes(4), 4)  # no record has 4 GB
    while zeros >= 0 and zeros + 8 <= len(data):
        at = zeros - 4
        if struct.unpack_from("<I", data, at + 8)[0] == checksum(data[at:at + 8]):
            return at
        zeros = data.find(bytes(4), zeros + 1)
    return len(data)


def read_events(path, start):
    """Scalars of a TensorBoard event file; a last record that is not whole is left out."""
    with open(path, "rb") as file:
        left = os.fstat(file.fileno()).st_size - start
        file.seek(start)
        if start:
            skip = next_record(file.read(left))
            left -= skip
            file.seek(start + skip)
        while left >= 16:
            size = struct.unpack("<Q", file.read(12)[:8])[0]
            if size > left - 16:
                break
            left -= 16 + size
            if size > RECORD_MOST:
                file.seek(size + 4, os.SEEK_CUR)
                continue
            event = dict(fields(file.read(size + 4)[:size]))
            if 7 in event:
                yield "restart", int(event.get(2, 0)) - 1, 0.0
            for _, value in (f for f in fields(event.get(5, b"")) if f[0] == 1):
                parts = dict(fields(value))
                if 2 in parts:
                    step = whole(event.get(2, 0), path)
                    yield parts[1].decode(), step, struct.unpack("<f", parts[2])[0]


def reader(path):
    name = os.path.basename(path)
    if "tfevents" in name:
        return read_events
    return read_json if name.endswith((".jsonl", ".json")) else read_csv


def files(path):
    """Those of a run: of a folder one kind, the first that is there."""
    if not os.path.isdir(path):
        return [path]
    for name in FILES:
        if os.path.exists(os.path.join(path, name)):
            return [os.path.join(path, name)]
    return sorted(os.path.join(path, n) for n in os.listdir(path) if "tfevents" in n)


def starts(paths, most):
    """Where each is read from, so that the last `most` bytes of all are read; None: all bytes."""
    out = []
    for path in reversed(paths):
        size = os.stat(path).st_size
        out.append(0 if most is None else max(size - most, 0))
        most = None if most is None else most - (size - out[-1])
    return out[::-1]


def load(path, most=None):
    """name -> [(step, value)], in the order of steps. After a restart at step s earlier values after s are
    forgotten. A step that was logged twice has its newest value. Reads at most that number of bytes, from the
    end."""
    curves, part = {}, path
    found = files(path)
    if not found:
        raise Bad(f"{path}: there is no log in this folder (scalars.csv, scalars.jsonl, events)")
    try:
        for part, start in zip(found, starts(found, most)):
            if not stat.S_ISREG(os.stat(part).st_mode):  # which may have no end
                raise Bad(f"{part}: this is not a file")
            for name, step, value in reader(part)(part, start):
                if name == "restart":
                    for points in curves.values():
                        for late in [s for s in points if s > step]:
                            del points[late]
                else:
                    curves.setdefault(plain(name), {})[step] = value
    except OSError as error:
        raise Bad(f"{part}: {error.strerror}") from None
    except (ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError,
            csv.Error, struct.error):
        raise Bad(f"{part}: this is not a log of numbers") from None
    return {name: sorted(points.items()) for name, points in curves.items() if points}


def plain(text):
    """Without what moves a terminal's cursor, or is not in XML."""
    return "".join(c if c.isprintable() else "?" for c in text)


def runs(folder):
    """The runs below a folder: those subfolders (and it) that hold a log."""
    return sorted(at for at, _, names in os.walk(folder)
                  if any(n in FILES or "tfevents" in n for n in names))


def finite(points):
    """Those that can be drawn: axes are sums of them."""
    return [(step, value) for step, value in points if abs(value) < 1e300]


def smooth(points, weight):
    """An exponential average whose start is not drawn to zero, as TensorBoard's."""
    last, total, out = 0.0, 0.0, []
    for step, value in points:
        last = last * weight + (1 - weight) * value
        total = total * weight + (1 - weight)
        out.append((step, last / total))
    return out


def ticks(low, high, most=5):
    """Round numbers between two."""
    span = max(high - low, 1e-300)
    step = 10.0 ** math.floor(math.log10(span / most))
    step *= next(k for k in (1, 2, 5, 10) if span / (step * k) <= most)
    first = math.ceil(low / step - 1e-9)
    return [round((first + i) * step, 12) for i in range(most + 2)
            if (first + i) * step <= high + 1e-9 * span]
