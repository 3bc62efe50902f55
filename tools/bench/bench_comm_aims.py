"""What ./build.sh bench comm is held to: speed ratios, medians of a run's rounds, dtrain with CRC."""

# On loopback: (peer, bytes) -> least ratio by ranks; gloo's at every other size is 1.
LOOPBACK = {("openmpi", 1 << 10): {2: 1.0, 4: 1 / 0.75, 8: 1 / 0.75},
            ("openmpi", 4 << 20): {2: 1.3, 4: 1.5},
            ("openmpi", 64 << 20): {2: 1.0, 4: 1.0, 8: 1.0},
            ("gloo", 64 << 20): {2: 1.3, 4: 1.3, 8: 1.3}}
# Between namespaces, in SIZES: both of the libraries', or the time of the same bytes over plain
# sockets.
SIZES = (1 << 10, 64 << 20)
LIBRARIES, PLAIN = {"openmpi": 1.0, "gloo": 1.3}, 0.95
# On a link with a limit: a share of what iperf3 reaches from this size on. Below it, Open MPI's
# speed.
SHARED_FROM, SHARE = 4 << 20, 0.95


def size_text(size):
    for unit, name in ((1 << 20, "MB"), (1 << 10, "KB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"


def say(report, line, text, met):
    print(f"  {'met ' if met else 'MISSED'}  {report['net']}, {line['ranks']} ranks, "
          f"{size_text(line['bytes'])}: {text}")


def ratio(line, peer):
    return line["ratio"].get(peer, [None])[0]


def of_peer(report, line, peer, least):
    found = ratio(line, peer)
    if found:
        say(report, line, f"{found:.2f} of {peer}'s speed, aim {least:.2f}", found >= least)


def on_loopback(report, line):
    for (peer, size), least in LOOPBACK.items():
        if size == line["bytes"] and line["ranks"] in least:
            of_peer(report, line, peer, least[line["ranks"]])
    if ("gloo", line["bytes"]) not in LOOPBACK:
        of_peer(report, line, "gloo", 1.0)


def between_hosts(report, line):
    if not SIZES[0] <= line["bytes"] <= SIZES[1]:
        return
    found = {peer: ratio(line, peer) for peer in (*LIBRARIES, "raw")}
    met = (all(not found[peer] or found[peer] >= least for peer, least in LIBRARIES.items())
           or (found["raw"] or 0) >= PLAIN)
    texts = [f"{found[peer]:.2f} of {peer}'s (aim {least:.2f})" for peer, least in LIBRARIES.items()
             if found[peer]]
    if found["raw"]:
        texts.append(f"or {found['raw']:.2f} of plain sockets' (aim {PLAIN:.2f})")
    if texts:
        say(report, line, ", ".join(texts), met)


def on_link(report, line, stream):
    if line["bytes"] < SHARED_FROM:
        of_peer(report, line, "openmpi", 1.0)
    elif stream:
        share = line["busbw"] / stream["one"]
        say(report, line, f"{100 * share:.1f} % of iperf3, aim {100 * SHARE:.0f} %", share >= SHARE)


def print_aims(reports):
    print("\nAims, of the medians with CRC:")
    for report in reports:
        stream = next((r["iperf3"] for r in reports if r["net"] == report["net"] and "iperf3" in r), None)
        if report["allocations"]:
            print(f"  MISSED  {report['net']}, {report['ranks']} ranks: no allocation in a loop")
        for line in report["lines"]:
            if report["gbps"]:
                on_link(report, line, stream)
            elif report["net"] == "loopback":
                on_loopback(report, line)
            else:
                between_hosts(report, line)
