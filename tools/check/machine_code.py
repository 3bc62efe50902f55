"""Machine code as drivers print it: its natural loops, and what is counted in the main one.

A parser gives (instructions, loops): a loop is the set of the numbers of its instructions, with those of
loops within it. Known are ACO (AMD), NAK (NVIDIA), GEN (Intel) and IR3 (Qualcomm), by Mesa's printing.
"""

import collections
import re

FMA = {"aco": re.compile(r"v_(?:pk_|dual_)?(?:fma|fmac|fmamk|fmaak|mac|mad|madmk|madak)_(?:f32|f16|legacy_f32)"),
       "nak": re.compile(r"\bffma"),
       "gen": re.compile(r"\b(?:mad|mac) \(\d+\) .*:f\b"),
       "ir3": re.compile(r"\bmad\.f(?:32|16)")}
# What goes to memory that only one invocation has.
SCRATCH = {"aco": re.compile(r"\bscratch_(?:load|store)|buffer_(?:load|store).*\boffen\b.*\bs32\b"),
           "nak": re.compile(r"\b(?:ld|st)\.local"),
           # bti(254) is a workgroup's memory.
           "gen": re.compile(r"\bugm\.\S*\.ss\b|\boword_block_(?:read|write)(?!.*bti\(254\))"),
           "ir3": re.compile(r"\b(?:stp|ldp)\b")}


def by_labels(lines, label, jump):
    """A jump back to a label is the end of its loop; two of them to one label are one loop."""
    labels, code, ends = {}, [], {}
    for line in lines:
        found = label.match(line)
        if found:
            labels[found.group(1)] = len(code)
        elif line.strip():
            code.append(line)
            found = jump.search(line)
            if found and found.group(1) in labels:
                ends[labels[found.group(1)]] = len(code)
    return code, [set(range(begin, end)) for begin, end in ends.items()]


def aco(text):
    lines = [line.split(";")[0].strip() for line in text.split("\n")]
    return by_labels(lines, re.compile(r"(BB\d+):"), re.compile(r"^s_c?branch\S*\s+(BB\d+)"))


def gen(text):
    lines = [line for line in text.split("\n") if re.match(r"L\d+:|\(|\s+[a-z]", line)]
    return by_labels(lines, re.compile(r"(L\d+):"), re.compile(r"\bwhile\b.*?(L\d+)"))


def ir3(text):
    """A repeated instruction counts as often as it is executed."""
    lines = []
    for line in text.split("\n"):
        if re.match(r"[;@]|Native|\s*$", line):
            continue
        again = re.search(r"\(rpt(\d)\)", line)
        lines += [line] * (1 + int(again.group(1)) if again else 1)
    return by_labels(lines, re.compile(r"(l\d+):"), re.compile(r"\b(?:br\w*|jump)\b.*#(l\d+)"))


def nak(text):
    """Blocks with their predecessors: a loop is what reaches the jump back without passing its target."""
    code, blocks = [], []
    for line in text.split("\n"):
        begin = re.match(r"block\S* (\d+) .*?\[.*?\] -> \{", line)
        end = re.match(r"\} -> \[(.*)\]", line)
        if begin:
            blocks.append((int(begin.group(1)), [], set()))
        elif end:
            blocks[-1][1].extend(int(n) for n in re.findall(r"\d+", end.group(1)))
        elif blocks and "//" in line:
            blocks[-1][2].add(len(code))
            code.append(line.strip())
    place = {number: i for i, (number, _, _) in enumerate(blocks)}
    before = collections.defaultdict(set)
    for i, (_, after, _) in enumerate(blocks):
        for number in after:
            before[place[number]].add(i)
    loops = collections.defaultdict(set)
    for i, (_, after, _) in enumerate(blocks):
        for head in (place[number] for number in after if place[number] <= i):
            within, todo = {head, i}, [i]
            while todo:
                at = todo.pop()
                new = before[at] - within if at != head else set()
                within |= new
                todo += new
            loops[head] |= within
    return code, [set().union(*(blocks[i][2] for i in within)) for within in loops.values()]


PARSERS = {"aco": aco, "nak": nak, "gen": gen, "ir3": ir3}


def multiplies(isa, lines):
    return sum(len(FMA[isa].findall(line)) for line in lines)


def main_loop(isa, text):
    """(the loop, those round it from the innermost on, all code, all loops). The loop that multiplies most,
    and mostly, outside of the loops within it; where none does, the longest innermost one."""
    code, loops = PARSERS[isa](text)

    def lines(loop):
        return [code[i] for i in sorted(loop)]

    def rank(loop):
        within = [other for other in loops if other < loop]
        own = lines(loop.difference(*within))
        return multiplies(isa, own) ** 2 / max(len(own), 1), not within, len(loop)
    best = max(loops, key=rank, default=set())
    return lines(best), [lines(loop) for loop in sorted(loops, key=len) if best < loop], code, loops


def width(line):
    """Bits of a load by one invocation, of ACO's code."""
    word = line.split()[0]
    bits, words = re.search(r"_[bu](\d+)$", word), re.search(r"dwordx(\d)", word)
    return int(bits.group(1)) if bits else 32 * int(words.group(1)) if words else 32


def loads(code):
    found = collections.Counter(width(line) for line in code if re.match(r"(buffer|global)_load", line))
    return "+".join(f"{n}x{bits}" for bits, n in sorted(found.items(), reverse=True)) or "-"


def figures(isa, text):
    """(instructions of the main loop, their share that multiplies and adds, accesses of scratch in all loops,
    loads). Loads from memory are those of the main loop, or of the next loop round it that has any. Without a
    loop they are all."""
    loop, round_it, code, loops = main_loop(isa, text)
    return (len(loop), multiplies(isa, loop) / max(len(loop), 1),
            sum(bool(SCRATCH[isa].search(code[i])) for i in set().union(*loops)),
            loads(next((part for part in [loop, *round_it] if loads(part) != "-"), loop or code)))
