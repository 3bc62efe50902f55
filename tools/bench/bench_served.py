#!/usr/bin/env python3
"""What ./build.sh bench served runs: training with one slow rank over a slow link, in each mode.

    ./build.sh bench served [--mbit 10] [--seconds 30] [--ranks 3] [--sleep 30] [--slow 3]
                            [--data build/data] [--text FILE] [--json FILE] [--svg docs/served.svg]

Ranks are in network namespaces of their own, whose links pass --mbit (tbf; root, Linux). They train a small
convolutional network on Fashion-MNIST (9,098 parameters, a batch of 64) for a number of seconds. They train
synchronously, by rounds of 20 local steps (DiLoCo), and as workers of a parameter server. The server is in one
more namespace, with staleness 0 and 4. Before each step a rank sleeps for --sleep ms, as if it computed; the
last one --slow times as long. With --text FILE they train a GPT over that file's bytes (220,544 parameters, 24
windows of 64 bytes a batch). --svg draws the loss by wall time.
"""

import argparse
import json
import os
import sys

sys.dont_write_bytecode = True
import bench # it has gone to the root of the repository
import bench_local
from bench_net import Namespaces, run

COLORS = ("#c0392b", "#2471a3", "#7d8a2e", "#8e44ad")
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 680, 300, 48, 40, 16, 190


class Net(Namespaces):
    namespaces, switch = "dtserved", "dtservedsw"

    def train(self, ranks, arguments, options):
        script = ("export DTRAIN_LOCAL_RANK=0 DTRAIN_LOCAL_SIZE=1 DTRAIN_IFNAME=eth0 "
                  f"{'DTLOCAL_TEXT=' + options.text if options.text else 'DTLOCAL_CNN=1'} "
                  f"DTLOCAL_SLEEP_MS={options.sleep} DTLOCAL_SLOW={options.slow} "
                  f"DTRAIN_RDZV=tcp://{self.address}:29400; "
                  f"exec ip netns exec {self.namespaces}$DTRAIN_RANK build/dtlocal \"$@\"")
        out = run(["build/dtrun", "-n", ranks, "sh", "-c", script, "sh", options.data, options.seconds,
                   *arguments], 120 + 2 * options.seconds)
        return [json.loads(line[line.index("{"):]) for line in out.split("\n") if "{" in line]


def curve(lines, seconds, count=60):
    """Times, and the mean loss of the samples of the tenth of the time before."""
    marks = [seconds * (i + 1) / count for i in range(count)]
    found = [(m, bench_local.loss_at(lines[:-1], m)) for m in marks]
    return [(m, l) for m, l in found if l is not None]


def svg(ways, seconds, title, most):
    inner, tall = WIDTH - LEFT - RIGHT, HEIGHT - BOTTOM - TOP
    at = lambda m, l: (round(LEFT + inner * m / seconds, 1),
                       round(TOP + tall * (1 - min(l, most) / most), 1))
    parts = []
    for (way, lines), color in zip(ways, COLORS):
        marks = [at(m, l) for m, l in curve(lines, seconds)]
        parts.append(f'<polyline points="{" ".join(f"{x},{y}" for x, y in marks)}" fill="none" '
                     f'stroke="{color}" stroke-width="2"/>')
    # names beside the curves' ends, which may lie close: one under the other, best last
    ends = sorted(((curve(lines, seconds)[-1][1], way, color)
                   for (way, lines), color in zip(ways, COLORS)), reverse=True)
    for i, (loss, way, color) in enumerate(ends):
        parts.append(f'<text x="{WIDTH - RIGHT + 10}" y="{TOP + 90 + 20 * i}" fill="{color}">{way} '
                     f'{loss:.2f}</text>')
    for value in range(6) if most > 3 else (0, 0.5, 1.0, 1.5, 2.0):
        y = at(0, value)[1]
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{value:g}</text>'
                     f'<line x1="{LEFT}" y1="{y}" x2="{LEFT + inner}" y2="{y}" stroke="#ddd"/>')
    for part in range(0, 6):
        x = LEFT + inner * part / 5
        parts.append(f'<text x="{x:.0f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">'
                     f'{seconds * part / 5:g}</text>')
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 6}">{title}</text>')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
            f'font-family="sans-serif" font-size="12" fill="#444">'
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>{"".join(parts)}</svg>\n')


def main():
    parser = argparse.ArgumentParser(prog="./build.sh bench served", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit", type=float, default=10)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--sleep", type=int, default=30, help="ms before each step of a rank")
    parser.add_argument("--slow", type=int, default=3, help="times as long for the last rank")
    parser.add_argument("--data", default="build/data")
    parser.add_argument("--text", help="a GPT over its bytes in place of the convolutional network")
    parser.add_argument("--json")
    parser.add_argument("--svg")
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise bench.Failure("it makes network namespaces, which takes root")
    n = options.ranks
    ways = [("synchronous", n, ["sync"]), ("server, staleness 0", n + 1, ["server", "0", str(n)]),
            ("server, staleness 4", n + 1, ["server", "4", str(n)]),
            ("rounds of 20 (DiLoCo)", n, ["local", "20", "none"])]
    done = []
    with Net(n + 1, options.mbit / 1000, "reno") as net:
        print(f"{n} ranks that compute, {options.mbit:g} Mbit/s each, {options.sleep} ms a step, the last "
              f"one {options.slow} times as long")
        for way, ranks, arguments in ways:
            lines = net.train(ranks, arguments, options)
            bench_local.tell(f"{way:22}", lines, options.seconds)
            done.append((way, lines))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(dict(done), file)
    if options.svg:
        of = "a GPT over bytes of text" if options.text else "a small network on Fashion-MNIST"
        title = (f"Seconds; loss of {of}, {n} ranks, one {options.slow} times "
                 f"slower, {options.mbit:g} Mbit/s each")
        with open(options.svg, "w", encoding="utf-8") as file:
            file.write(svg(done, options.seconds, title, 5.8 if options.text else 2.4))


if __name__ == "__main__":
    try:
        main()
    except bench.Failure as failure:
        sys.exit(f"bench served: {failure}")
