#!/usr/bin/env python3
"""Records what pandas takes columns of a CSV file for into tests/golden/csv_pandas.txt, for
tests/data/test_csv.c.

    python3 tools/golden/record_golden_csv.py      (pandas)

A line is a column: the kind, the number of missing values and the mean. Then come the line of the first value
that is not finite, and the cells. Kinds: n, finite numbers; i, with infinite ones; c, other texts look like
numbers (dtrain refuses both); t, texts.
"""
import io
import math
import random

import pandas

MISSING = ["", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
           "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"]
NUMBERS = ["0", "1", "-2", "+5", ".5", "5.", "-0.25", "1e5", "1E-3", " 5", "5 ", '"3"', "1e-400",
           "123456789012345", "007", "3.14159"]
INFINITE = ["inf", "-inf", "Infinity", "+inf", "INF", "1e400", "-1e999"]
COMMAS = ['"1,5"', '"-0,25"', '"1.234,5"', '"1,234.5"']
TEXTS = ["x", "none", "True", "0x10", "1_0", "-", "1e", "1d5", "5%", "1 5", "+-5", "e5", "1.2.3",
         " NA", ".", "\"1,2,3\"", "in", "infinit", "- 5", "1#", "<NA", "-1.#"]


def column(cells):
    text = "i,x\n" + "".join("%d,%s\n" % row for row in enumerate(cells))
    return pandas.read_csv(io.StringIO(text))["x"]


def is_number(cell):
    x = column([cell, "1"])
    return x.dtype.kind in "iuf" and not math.isinf(float(x[0]))


def line_of(cells):
    x = column(cells)
    odd = [i for i, cell in enumerate(cells) if not is_number(cell)]
    kind, mean = "t", 0.0
    if x.dtype.kind in "iuf":
        kind = "n" if not odd else "i"
        mean = float(x.mean()) if kind == "n" and x.notna().any() else 0.0
    elif odd and all(cells[i] in INFINITE + COMMAS for i in odd):
        kind = "c"
    return "\t".join([kind, str(int(x.isna().sum())), repr(mean), str(odd[0] + 2 if odd else 0)] + cells)


def main():
    chance = random.Random(1)
    lines = [line_of(["1", "2.5", cell, "-3"]) for cell in MISSING + NUMBERS + INFINITE + COMMAS + TEXTS]
    pools = [NUMBERS, MISSING, INFINITE, COMMAS, TEXTS]
    for _ in range(300):
        shares = [chance.choice([4, 8]), chance.choice([0, 1, 4])] + [
            chance.choice([0, 0, 0, 1]) for _ in range(3)]
        chosen = chance.choices(pools, shares, k=chance.randint(2, 9))
        lines.append(line_of([chance.choice(pool) for pool in chosen]))
    with open("tests/golden/csv_pandas.txt", "w") as file:
        file.write("\n".join(lines) + "\n")


main()
