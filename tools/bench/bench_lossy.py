#!/usr/bin/env python3
"""What ./build.sh bench lossy runs: all-reduces of two ranks over a long line that loses packets.

    ./build.sh bench lossy [--count 10000] [--bytes 1024] [--ms 10] [--percent 1] [--congestion reno]

Two network namespaces joined by build/dtlossy, which passes each packet after some milliseconds and
loses a percentage (root, Linux). The aim: the slowest of a thousand takes no longer than the round trip and
two retransmission time-outs, as TCP itself says. Status 1 if it is missed.
"""

import argparse
import json
import os
import subprocess
import sys

sys.dont_write_bytecode = True
import bench # it has gone to the root of the repository
from bench_net import run

NAMES = ("dtlossy0", "dtlossy1")


def remove():
    for name in NAMES:
        if os.path.exists(f"/run/netns/{name}"):
            run(["ip", "netns", "del", name])


def measure(options):
    for name in NAMES:
        run(["ip", "netns", "add", name])
        run(["ip", "netns", "exec", name, "sysctl", "-q", "-w",
             f"net.ipv4.tcp_congestion_control={options.congestion}"])
    line = subprocess.Popen(["build/dtlossy", *NAMES, str(options.ms), str(options.percent)],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        if line.stdout.readline() != "ready\n":
            raise bench.Failure("dtlossy: no line")
        script = ("export DTRAIN_LOCAL_RANK=0 DTRAIN_LOCAL_SIZE=1 DTRAIN_IFNAME=wan "
                  "DTRAIN_RDZV=tcp://10.216.0.1:29400; "
                  "exec ip netns exec dtlossy$DTRAIN_RANK build/dtbench_comm \"$@\"")
        out = run(["build/dtrun", "-n", 2, "sh", "-c", script, "sh", "tail", options.count, 0, options.bytes],
                  600)
    finally:
        line.stdin.close()
        line.wait()
    return json.loads(out[out.index("{"):])


def main():
    parser = argparse.ArgumentParser(prog="./build.sh bench lossy", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--bytes", type=int, default=1024)
    parser.add_argument("--ms", type=float, default=10, help="one way")
    parser.add_argument("--percent", type=float, default=1, help="of all packets, each way")
    parser.add_argument("--congestion", default="reno")
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise bench.Failure("it makes network namespaces, which takes root")
    remove()
    try:
        found = measure(options)
    finally:
        remove()
    limit = 2e3 * options.ms + 2 * found["rto_us"]
    print(json.dumps(found))
    print(f"{options.count} all-reduces of {options.bytes} bytes, {2 * options.ms:g} ms there and back, "
          f"{options.percent:g} % lost each way, {options.congestion}: median {found['p50_us'] / 1e3:.1f} ms, "
          f"99.9 % within {found['p999_us'] / 1e3:.1f} ms, all within {found['most_us'] / 1e3:.1f} ms; "
          f"round trip and two time-outs of {found['rto_us'] / 1e3:.0f} ms: {limit / 1e3:.0f} ms: "
          f"{'met' if found['p999_us'] <= limit else 'MISSED'}")
    return found["p999_us"] > limit


if __name__ == "__main__":
    try:
        sys.exit(main())
    except bench.Failure as failure:
        sys.exit(f"bench lossy: {failure}")
