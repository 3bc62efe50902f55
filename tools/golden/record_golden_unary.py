#!/usr/bin/env python3
"""Records exact values and slopes of the elementwise functions, by MPFR at 300 bits. They go into
tests/ops/unary_exact.h for tests/ops/test_unary.c. That test counts units in the last place by formulas in
double, which are held to them. Needs gmpy2 and mpmath (PyPI).

    python3 tools/golden/record_golden_unary.py
"""
import os
import struct

import gmpy2
import mpmath
from gmpy2 import mpfr

OUT = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "tests/ops/unary_exact.h")
P0 = mpfr("-0.75")  # unary_p0 of the test
AT = [1e-40, 3e-8, 0.3, 0.58, 1.1924692, 2.77, 9.165, 17.0253506, 33.3, 88.5, 103.9,
      102400.0, 16367173 * 2.0**72, 3.4028234663852886e38]
INSIDE = [1e-40, 3e-8, 0.3, 0.58, 0.83152378, 0.99917394, 0.99998212, 0.99999869, 1 - 2.0**-24]

gmpy2.get_context().precision = 300
gmpy2.get_context().emax, gmpy2.get_context().emin = 1 << 40, -(1 << 40)
mpmath.mp.prec = 300
exp, one, half, pi = gmpy2.exp, mpfr(1), mpfr(1) / 2, gmpy2.const_pi()


def erfinv(x):
    y = mpmath.erfinv(mpmath.mpf(str(x)))
    return mpfr(mpmath.nstr(y, 90))


def sigmoid(x):
    return one / (one + exp(-x))


def bell(x):
    return sigmoid(x) * sigmoid(-x)


def softplus(x):
    return x if x > 20 else gmpy2.log1p(exp(x))


def erfc_of(x):
    return gmpy2.erfc(-x / gmpy2.sqrt(mpfr(2)))


def inner(x):
    return gmpy2.sqrt(2 / pi) * (x + mpfr("0.044715") * x**3)


def gelu_tanh_slope(x):
    bend = gmpy2.sqrt(2 / pi) * (one + 3 * mpfr("0.044715") * x**2)
    return sigmoid(2 * inner(x)) + 2 * x * bell(2 * inner(x)) * bend


def mish_slope(x):
    t = gmpy2.tanh(softplus(x))
    return t + x * gmpy2.sech(softplus(x))**2 * sigmoid(x)


LAMBDA, ALPHA = mpfr("1.05070098735548"), mpfr("1.75809934084738")
ROWS = {
    "exp": (exp, exp),
    "log": (gmpy2.log, lambda x: one / x),
    "log1p": (gmpy2.log1p, lambda x: one / (one + x)),
    "expm1": (gmpy2.expm1, exp),
    "sqrt": (gmpy2.sqrt, lambda x: half / gmpy2.sqrt(x)),
    "rsqrt": (lambda x: one / gmpy2.sqrt(x), lambda x: -half / (x * gmpy2.sqrt(x))),
    "reciprocal": (lambda x: one / x, lambda x: -one / x**2),
    "sin": (gmpy2.sin, gmpy2.cos),
    "cos": (gmpy2.cos, lambda x: -gmpy2.sin(x)),
    "tanh": (gmpy2.tanh, lambda x: gmpy2.sech(x)**2),
    "sigmoid": (sigmoid, bell),
    "gelu": (lambda x: half * x * erfc_of(x),
             lambda x: half * erfc_of(x) + x * exp(-half * x**2) / gmpy2.sqrt(2 * pi)),
    "gelu_tanh": (lambda x: x * sigmoid(2 * inner(x)), gelu_tanh_slope),
    "silu": (lambda x: x * sigmoid(x), lambda x: sigmoid(x) + x * bell(x)),
    "softplus": (softplus, lambda x: one if x > 20 else sigmoid(x)),
    "log_sigmoid": (lambda x: -gmpy2.log1p(exp(-x)) if x > 0 else x - gmpy2.log1p(exp(x)),
                    lambda x: sigmoid(-x)),
    "elu": (lambda x: x if x > 0 else P0 * gmpy2.expm1(x), lambda x: one if x > 0 else P0 * exp(x)),
    "selu": (lambda x: LAMBDA * x if x > 0 else ALPHA * gmpy2.expm1(x),
             lambda x: LAMBDA if x > 0 else ALPHA * exp(x)),
    "mish": (lambda x: x * gmpy2.tanh(softplus(x)), mish_slope),
    "softsign": (lambda x: x / (one + abs(x)), lambda x: one / (one + abs(x))**2),
    "hardswish": (lambda x: x * min(max(x + 3, mpfr(0)), mpfr(6)) / 6,
                  lambda x: mpfr(0) if x <= -3 else one if x >= 3 else x / 3 + half),
    "erf": (gmpy2.erf, lambda x: 2 / gmpy2.sqrt(pi) * exp(-x**2)),
    "erfinv": (erfinv, lambda x: gmpy2.sqrt(pi) / 2 * exp(erfinv(x)**2)),
    "atan": (gmpy2.atan, lambda x: one / (one + x**2)),
}


def main():
    lines = []
    for name, (value, slope) in ROWS.items():
        for magnitude in INSIDE if name == "erfinv" else AT:
            for sign in (1, -1):
                bits = struct.unpack("<I", struct.pack("<f", sign * magnitude))[0]
                x = mpfr(struct.unpack("<f", struct.pack("<I", bits))[0])
                y, dy = value(x), slope(x)
                if all(gmpy2.is_finite(v) and abs(v) < 1e300 for v in (y, dy)):
                    lines.append(f"    {{DTI_U_{name.upper()}, 0x{bits:08x}, "
                                 f"{{{float(y).hex()}, {float(dy).hex()}}}}},")
    with open(OUT, "w", encoding="utf-8") as file:
        file.write("/* Written by tools/golden/record_golden_unary.py, do not edit: exact values and slopes, by "
                   "MPFR. */\n/* clang-format off */\n")
        file.write("static const struct {\n    int selector;\n    uint32_t bits;\n"
                   "    double value[2]; /* and slope */\n} unary_exact[] = {\n")
        file.write("\n".join(lines) + "\n};\n")


main()
