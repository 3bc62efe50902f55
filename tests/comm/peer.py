#!/usr/bin/env python3
"""A rank written only from docs/protocol.md, with Python's standard library: rank 1 of 2.

    peer.py HOST PORT KEYFILE COUNT [--late]     joins, sums COUNT floats with rank 0, leaves;
                                                 late: posts only when rank 0 has asked
    peer.py HOST PORT KEYFILE --refused TEXT     succeeds when it is refused with that text
    peer.py HOST PORT KEYFILE --corrupt          sends data whose checksum is wrong; succeeds when
                                                 rank 0 ends the group for it

Its array is that of examples/allreduce.c: element i is i mod 1000 + rank.
"""
import hashlib
import hmac
import os
import select
import socket
import struct
import sys
import time

RANK, WORLD = 1, 2
CONTROL, DATA = 0, 1
HELLO, PROOF, REFUSAL, FRAME = b"DTRH", b"DTRP", b"DTRX", b"DTR1"
TYPES = dict(DATA=1, EAGER=2, POST=3, CREDIT=4, RETURN=5, PING=6, PONG=7, BYE=8, RESUME=9, JOIN=10,
             ROSTER=11, HEARTBEAT=12, LEFT=13, LOST=14, REVOKE=15)
NOT_KEPT = ("RESUME", "RETURN", "PING", "PONG", "HEARTBEAT")
VERSION = 3
NAMES = {number: name for name, number in TYPES.items()}
HEADER = struct.Struct("<4sBBHHHIQHHBBHQII")  # without the tag
ALL_REDUCE = 4
CORRUPT = 14  # a result
CHUNK_BYTES, WINDOW, SILENCE = 262144, 0, 5.0  # the defaults; window 0: by what links cost
EAGER_BYTES = 65536


class Refused(Exception):
    """The other side sent a REFUSAL."""


class Revoked(Exception):
    """The group has ended: (result, culprit, text)."""


def crc32c_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


TABLE = crc32c_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def mac(key, text):
    return hmac.new(key, text, hashlib.sha256).digest()


def hkdf(key, salt, info):
    """RFC 5869, one block of output."""
    return mac(mac(salt or bytes(32), key), info + b"\x01")


class Connection:
    """One TCP connection that this rank has dialled: the handshake, then frames."""

    def __init__(self, address, key, channel, nonce=bytes(16)):
        self.channel = channel
        self.socket = socket.create_connection(address, timeout=5)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        self.frames_out = self.frames_in = self.kept_in = 0
        self.handshake(key, nonce)
        self.send("RESUME", value=0)

    def exactly(self, count):
        while len(self.buffer) < count:
            more = self.socket.recv(65536)
            if not more:
                raise EOFError("the connection ended in the handshake")
            self.buffer += more
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        return taken

    def message(self, magic, count):
        """One message of the handshake."""
        start = self.exactly(4)
        if start == REFUSAL:
            _, size = struct.unpack("<HH", self.exactly(4))
            raise Refused(self.exactly(size).decode("ascii"))
        assert start == magic, start
        return start + self.exactly(count - 4)

    def handshake(self, key, nonce):
        epoch = 1 if self.channel == DATA else 0
        mine = struct.pack("<4sBBBBIIIIQ32s16sHHB7x", HELLO, VERSION, VERSION, self.channel, 0,
                           RANK, 0, WORLD, epoch, 0, os.urandom(32), nonce, 0, 1, 0)
        mine += struct.pack("<I64x", crc32c(mine + bytes(64)))
        self.socket.sendall(mine)
        theirs = self.message(HELLO, 160)
        assert theirs[92:96] == struct.pack("<I", crc32c(theirs[:92] + theirs[96:]))
        assert len(mine) == 160
        _, low, high, channel, insecure, rank, expected, world = struct.unpack_from("<4sBBBBIII",
                                                                                    theirs)
        assert low <= VERSION <= high and channel == self.channel and not insecure
        assert (rank, expected, world) == (0, RANK, WORLD)
        transcript = hashlib.sha256(mine + theirs).digest()
        auth = hkdf(key, None, b"dtrain1 auth")
        proof = PROOF + mac(auth, b"dtrain1 client" + transcript)
        self.socket.sendall(proof + struct.pack("<I", crc32c(proof)))
        proof = self.message(PROOF, 40)
        assert proof[36:] == struct.pack("<I", crc32c(proof[:36]))
        assert hmac.compare_digest(proof[4:36], mac(auth, b"dtrain1 server" + transcript))
        self.key_out = hkdf(key, transcript, b"dtrain1 to server")
        self.key_in = hkdf(key, transcript, b"dtrain1 to client")

    def tag(self, key, number, header, kind, body):
        covered = kind not in (TYPES["DATA"], TYPES["EAGER"])
        digest = hashlib.sha256(body).digest() if body and covered else b""
        return mac(key, struct.pack("<Q", number) + header[4:] + digest)[:16]

    def send(self, name, body=b"", value=0, flip=0, **fields):
        kind = TYPES[name]
        header = HEADER.pack(FRAME, VERSION, kind, fields.get("flags", 0), 1,
                             self.kept_in & 0xFFFF, 0, fields.get("sequence", 0),
                             fields.get("stream", 0),
                             fields.get("returned", 0), fields.get("dtype", 0),
                             fields.get("kind", 0), fields.get("root", 0), value, len(body),
                             (crc32c(body) ^ flip) if body else 0)
        tag = self.tag(self.key_out, self.frames_out, header, kind, body)
        self.frames_out += 1
        self.socket.sendall(header + tag + body)

    def receive(self):
        """Reads what there is. Returns frames that are whole: (name, fields, body)."""
        more = self.socket.recv(65536)
        self.buffer += more
        frames = []
        while len(self.buffer) >= 64:
            header, tag = self.buffer[:48], self.buffer[48:64]
            (magic, version, kind, flags, epoch, _, group, sequence, stream, returned, dtype,
             operation, root, value, length, crc) = HEADER.unpack(header)
            assert (magic, version, epoch, group) == (FRAME, VERSION, 1, 0), header
            if len(self.buffer) < 64 + length:
                break
            body = self.buffer[64:64 + length]
            self.buffer = self.buffer[64 + length:]
            wanted = self.tag(self.key_in, self.frames_in, header, kind, body)
            self.frames_in += 1
            assert hmac.compare_digest(tag, wanted), "a wrong tag"
            assert crc == crc32c(body), "a wrong checksum"
            self.kept_in += NAMES[kind] not in NOT_KEPT
            frames.append((NAMES[kind], dict(flags=flags, sequence=sequence, stream=stream,
                                             returned=returned, dtype=dtype, kind=operation,
                                             root=root, value=value), body))
        return frames, not more


class Rank:
    """Both connections; what came and was not asked for yet."""

    def __init__(self, address, key):
        self.key = key
        self.connections = [Connection(address, key, CONTROL)]
        self.came = []
        self.ended = set()
        self.beat_at = 0.0

    def pump(self):
        """Waits a little for frames, and keeps up the heartbeat."""
        now = time.monotonic()
        if now >= self.beat_at and CONTROL not in self.ended:
            self.beat_at = now + SILENCE / 10
            self.connections[CONTROL].send("HEARTBEAT")
        sockets = {c.socket: c for c in self.connections if c.channel not in self.ended}
        for readable in select.select(list(sockets), [], [], 0.1)[0]:
            connection = sockets[readable]
            frames, end = connection.receive()
            for name, fields, body in frames:
                self.take(connection, name, fields, body)
            if end:
                self.ended.add(connection.channel)

    def take(self, connection, name, fields, body):
        if name == "REVOKE":
            result, culprit = struct.unpack_from("<II", body)
            raise Revoked(result, culprit, body[8:].decode("ascii"))
        if name == "PING" and self.beat_at < float("inf"):
            connection.send("PONG")
        elif name == "RESUME":
            assert fields["value"] == 0, "nothing was lost, as nothing is ever joined again here"
        elif name not in NOT_KEPT:
            self.came.append((connection.channel, name, fields, body))

    def wait(self, channel, *names):
        """The next frame of one of these types."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            for i, (where, name, fields, body) in enumerate(self.came):
                if where == channel and name in names:
                    del self.came[i]
                    return name, fields, body
            self.pump()
        raise TimeoutError(f"no {' or '.join(names)} in 10 s")

    def join(self):
        """JOIN without an address, as nobody dials the highest rank; then the ROSTER."""
        self.connections[CONTROL].send("JOIN", struct.pack("<QIHHH", CHUNK_BYTES, WINDOW, 0, 0, 0))
        _, fields, body = self.wait(CONTROL, "ROSTER")
        assert fields["value"] == 0
        nonce, at, ranks = body[:16], 44, []
        assert struct.unpack_from("<H", body, 16)[0] == 1  # who shares a host is not known
        assert struct.unpack_from("<H", body, 18)[0] == 2  # links are not measured: DTRAIN_LINK=off
        while at < len(body):
            size = struct.unpack_from("<H", body, at)[0]
            ranks.append(addresses(body[at + 2:at + 2 + size]))
            at += 2 + size
        assert len(ranks) == WORLD and ranks[0]
        self.connections.append(Connection(ranks[0][0], self.key, DATA, nonce))

    def all_reduce(self, mine, sequence, flip=0):
        """The sum of both ranks' floats, by doubling: the whole array each way in stream 0."""
        operation = dict(kind=ALL_REDUCE, dtype=0, sequence=sequence)
        body = struct.pack(f"<{len(mine)}f", *mine)
        assert len(body) <= CHUNK_BYTES, "larger ones go in another way"
        if len(body) <= EAGER_BYTES:
            self.connections[DATA].send("EAGER", body, len(mine), flip, **operation)
        else:
            self.connections[DATA].send("POST", value=len(mine), **operation)
            _, fields, _ = self.wait(DATA, "POST")  # which permits the whole stream
            assert fields["value"] == len(mine) and fields["flags"] == 0
            self.connections[DATA].send("DATA", body, 0, flip, **operation)
        name, fields, body = self.wait(DATA, "EAGER", "DATA")
        assert (fields["kind"], fields["dtype"], fields["stream"], fields["sequence"]) == (
            ALL_REDUCE, 0, 0, sequence)
        assert fields["value"] == (len(mine) if name == "EAGER" else 0)
        theirs = struct.unpack(f"<{len(mine)}f", body)
        return [a + b for a, b in zip(theirs, mine)]

    def leave(self):
        """BYE both ways on each connection, then its end."""
        for connection in self.connections:
            connection.send("BYE")
            connection.socket.shutdown(socket.SHUT_WR)
        self.beat_at = float("inf")
        for connection in self.connections:
            self.wait(connection.channel, "BYE")
        deadline = time.monotonic() + 5
        while not {CONTROL, DATA} <= self.ended:
            assert time.monotonic() < deadline, "the connections do not end"
            self.pump()


def addresses(data):
    found, at = [], 0
    while at < len(data):
        family, port = struct.unpack_from("<BH", data, at)
        size = {1: 16, 4: 4, 6: 16}[family]
        if family == 1:  # host and local socket: not for who goes over TCP
            at += 3 + size
            continue
        text = socket.inet_ntop(socket.AF_INET if family == 4 else socket.AF_INET6,
                                data[at + 3:at + 3 + size])
        found.append((text, port))
        at += 3 + size
    return found


def connect(address, key):
    """Rank 0 may not be there yet."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return Rank(address, key)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def main():
    host, port, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    rest = sys.argv[4:]
    assert crc32c(b"123456789") == 0xE3069283
    with open(path, encoding="ascii") as file:
        key = bytes.fromhex(file.read().strip())
    if rest[:1] == ["--refused"]:
        try:
            connect((host, port), key)
        except Refused as refusal:
            assert rest[1] in str(refusal), refusal
            print(f"refused: {refusal}")
            return
        raise AssertionError("it was not refused")
    corrupt = rest[:1] == ["--corrupt"]
    count = int(rest[0]) if rest and not corrupt else 5
    mine = [float(i % 1000 + RANK) for i in range(count)]
    rank = connect((host, port), key)
    rank.join()
    try:
        if "--late" in rest:
            while not any(name == "POST" for _, name, _, _ in rank.came):
                rank.pump()
        total = rank.all_reduce(mine, 0, flip=1 if corrupt else 0)
        while corrupt:  # rank 0's own data may have come before
            rank.pump()
    except Revoked as end:
        result, culprit, text = end.args
        assert corrupt and result == CORRUPT and culprit == RANK, end
        print(f"revoked: {text}")
        return
    assert total == [WORLD * (i % 1000) + 1 for i in range(count)], total
    rank.leave()
    print(f"rank {RANK} of {WORLD} (python): the sum of {count} floats is right")


if __name__ == "__main__":
    main()
