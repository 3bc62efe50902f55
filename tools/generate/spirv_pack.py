"""Packs SPIR-V for src/backend/vulkan/shader_table.h, and unpacks it as unpack.c there does.

A Coder goes the same way in both directions: it is given each bit to encode, or finds it. What the odds of a
bit depend on, and how they learn, is in unpack.c.
"""

FIRST = "grad_norm"  # the module of which the odds learn before another: small, and like all others
HEADER = 5
ODDS_BITS = 17
FUNCTION, SWITCH, SPEC_OP, EXTRACT = 54, 251, 52, 81
NEW, AS_IS, BEFORE, AFTER = range(4)
# Opcode -> what its operands are: the result's id, another id, or no id; the last goes on. Others: `iri`.
OPERANDS = {name: kinds for names, kinds in {
    (17, 14): "n", (11, 21, 22): "rn", (19, 20, 248): "r", (15,): "ninni", (16, 71, 72, 247): "in",
    (23, 24): "rin", (28, 29, 30, 33): "ri", (32,): "rni", (43, 50): "irn", (54, 59): "irni", (52,): "irni",
    (61, 81): "irin", (62, 246): "iin", (79, 82): "iriin", (12,): "irini", (224, 225, 228, 249, 250, 254): "i",
}.items() for name in names}


def kinds_of(opcode, operands):
    if opcode == SWITCH:
        return "ii" + "ni" * (len(operands) // 2 - 1)
    kinds = OPERANDS.get(opcode, "iri")
    if opcode == SPEC_OP and operands[2] == EXTRACT:
        kinds = "irnin"
    return kinds + kinds[-1] * (len(operands) - len(kinds))


def instructions(words):
    """[(opcode, operands)]; the header is the first, with opcode 0."""
    found, at = [(0, list(words[:HEADER]))], HEADER
    while at < len(words):
        count = words[at] >> 16
        found.append((words[at] & 0xffff, list(words[at + 1:at + count])))
        at += count
    return found


def renumbered(words):
    """The module with ids in the order of their definition, and the kind in which each word is packed."""
    code = [(opcode, operands, "n" * HEADER if opcode == 0 else kinds_of(opcode, operands))
            for opcode, operands in instructions(words)]
    ids = {}
    for _, operands, kinds in code:
        for word, kind in zip(operands, kinds):
            if kind == "r":
                ids[word] = len(ids) + 1
    first_local = next(ids[operands[1]] for opcode, operands, _ in code if opcode == FUNCTION)
    code[0][1][3] = len(ids) + 1
    made, newest = [], 1
    for opcode, operands, kinds in code:
        packed = []
        for word, kind in zip(operands, kinds):
            word = word if kind == "n" else ids[word]
            if kind == "n" or word < min(first_local, newest):
                packed.append((AS_IS, word))
            else:
                packed.append((NEW if word == newest else BEFORE if word < newest else AFTER, word))
            newest += packed[-1][0] == NEW
        made.append((opcode, packed))
    return made


class Coder:
    def __init__(self, learnt=None):
        self.one = list(learnt.one) if learnt else [32768] * (1 << ODDS_BITS)
        self.seen = list(learnt.seen) if learnt else [0] * (1 << ODDS_BITS)

    def start(self, data=None):
        """Decodes data, or encodes into self.out."""
        self.low, self.high, self.out, self.data, self.at = 0, 0xffffffff, bytearray(), data, 4
        self.code = int.from_bytes((data or b"")[:4].ljust(4, b"\0"), "big")

    def bit(self, context, node, bit):
        mixed = (context * 0x9e3779b1 ^ node * 0x85ebca6b) & 0xffffffff
        slot = ((mixed ^ mixed >> 15) * 0xc2b2ae35 & 0xffffffff) >> 32 - ODDS_BITS
        one, seen = self.one[slot], self.seen[slot]
        middle = self.low + (self.high - self.low >> 16) * one
        if self.data is not None:
            bit = self.code <= middle
        if bit:
            self.high = middle
            self.one[slot] = one + (65535 - one) * 3 // (3 * seen + 4)
        else:
            self.low = middle + 1
            self.one[slot] = one - one * 3 // (3 * seen + 4)
        self.seen[slot] = min(seen + 1, 15)
        while (self.low ^ self.high) < 1 << 24:
            if self.data is None:
                self.out.append(self.high >> 24)
            else:
                following = self.data[self.at] if self.at < len(self.data) else 0
                self.code = (self.code << 8 | following) & 0xffffffff
                self.at += 1
            self.low = self.low << 8 & 0xffffffff
            self.high = self.high << 8 & 0xffffffff | 255
        return bit

    def number(self, context, n):
        """n, or None where it is to be found."""
        n = None if n is None else n + 1
        bits, found = 0, 1
        while bits < 32 and self.bit(context, bits, n and bits < n.bit_length() - 1):
            bits += 1
        for i in range(bits):
            found = found << 1 | self.bit(context, 64 + (found << 6 | bits), n and n >> bits - 1 - i & 1)
        return found - 1

    def operand(self, opcode, place, newest, kind, word):
        context = (opcode << 3 | (6 | place & 1 if place > 7 else place)) << 3
        distant = self.bit(context, 0, kind and kind >> 1)
        kind = distant << 1 | self.bit(context, 1 + distant, kind and kind & 1)
        if kind == NEW:
            return newest, newest + 1
        sign, base = {AS_IS: (1, 0), BEFORE: (-1, newest - 1), AFTER: (1, newest + 1)}[kind]
        n = self.number(context | kind, None if word is None else (word - base) * sign)
        return (base + n * sign) & 0xffffffff, newest

    def module(self, count, known=()):
        """The words; known is what `renumbered` gives, or nothing."""
        words, opcode, size, newest = [], 0, HEADER, 1
        following = iter(known)
        while len(words) < count:
            packed = next(following, (None, None))
            if words:
                opcode = self.number(1 << 20 | opcode, packed[0])
                size = self.number(1 << 21 | opcode, len(packed[1]) if known else None)
                words.append(size + 1 << 16 | opcode)
            for place in range(size):
                word, newest = self.operand(opcode, place, newest, *(packed[1][place] if known else (None, None)))
                words.append(word)
        return words


def pack(words, learnt=None):
    """Bytes, and the coder that has learnt of them."""
    coder = Coder(learnt)
    coder.start()
    coder.module(len(words), renumbered(words))
    return bytes(coder.out) + bytes([(coder.low >> 24) + 1]), coder


def unpack(data, count, learnt=None):
    """Words, and the coder that has learnt of them."""
    coder = Coder(learnt)
    coder.start(data)
    return coder.module(count), coder
