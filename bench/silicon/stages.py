#!/usr/bin/env python3
"""Prints the time of each kind of stage at many threads: wall time, mean and longest work of its threads.

usage: ixc run MODEL --raw -p TEXT -n 64 -t THREADS --trace TRACE.json
       stages.py TRACE.json [SKIP]        leaves out SKIP tokens at the beginning (8)
"""
import collections
import json
import re
import signal
import sys

THREADS, TOKENS = 2, 1  # The trace's processes: one lane for each thread, and one for tokens.


def lanes(events, first):
    """Returns the events of each thread from a time on, in order."""
    found = collections.defaultdict(list)
    for event in events:
        if event["ph"] == "X" and event["pid"] == THREADS and event["ts"] >= first:
            found[event["tid"]].append(event)
    # If two events begin together, the longer one contains the other.
    return [sorted(lane, key=lambda event: (event["ts"], -event["dur"])) for lane in found.values()]


def kind(name):
    """An op's name without its layer, state and expert."""
    return re.split(r" blk| layer| expert | kv\.", name)[0]


def stages_of(lane):
    """Returns a tuple for each barrier of a thread.

    The items are microseconds of work before the barrier, kind and begin of the work, and begin and end of the
    barrier. The last item is the thread's work alone in the barrier, as kinds and microseconds.
    """
    found, busy, name, begin = [], 0.0, "", None
    for event in lane:
        if event["name"] == "barrier":
            found.append((busy, name, begin, event["ts"], event["ts"] + event["dur"], []))
            busy, name, begin = 0.0, "", None
        elif found and event["ts"] < found[-1][4]:
            found[-1][5].append((kind(event["name"]), event["dur"]))
        else:
            busy += event["dur"]
            name = name or kind(event["name"])
            begin = event["ts"] if begin is None else begin
    return found


def main():
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    with open(sys.argv[1]) as file:
        events = json.load(file)
    events = events["traceEvents"] if isinstance(events, dict) else events
    skip = int(sys.argv[2]) if len(sys.argv) > 2 else 8
    tokens = [e for e in events if e["ph"] == "X" and e["pid"] == TOKENS and e["name"].startswith("token")]
    tokens.sort(key=lambda event: event["ts"])
    if not tokens:
        sys.exit(f"{sys.argv[1]}: no token in it")
    first = tokens[min(skip, len(tokens) - 1)]["ts"]
    count = sum(token["ts"] >= first for token in tokens)
    threads = [stages_of(lane) for lane in lanes(events, first)]
    sums = collections.defaultdict(lambda: [0.0] * 6)
    last = None
    # A stage is the work of all threads between two barriers. An incomplete last stage is left out.
    for stage in zip(*threads):
        end = max(left for *_, left, _ in stage)
        if last is not None:
            alone = [work for *_, works in stage for work in works]
            for name, duration in alone:
                for i, value in enumerate([1, duration, duration / len(threads), duration, 0, 0]):
                    sums["alone: " + name][i] += value
            # The work that one thread did alone at the barrier does not count as the stage's.
            done = sum(duration for _, duration in alone)
            names = [name for _, name, *_ in stage if name]
            begins = [begin for _, _, begin, *_ in stage if begin is not None]
            work = [busy for busy, *_ in stage]
            row = sums[max(set(names), key=names.count) if names else "(nothing)"]
            late = max(begins) - last if begins else 0
            leave = end - max(came for _, _, _, came, _, _ in stage) - done
            for i, value in enumerate([1, end - last - done, sum(work) / len(work), max(work), late, leave]):
                row[i] += value
        last = end
    print(f"{len(threads)} threads, {count} tokens; microseconds a token")
    print("late: until the last thread has begun; leave: from the last arrival at the barrier to the last departure, without what one did alone")
    print(f"{'stage':34} {'stages':>6} {'wall':>8} {'mean work':>9} {'longest':>8} {'late':>7} {'leave':>7}")
    rows = sorted(sums.items(), key=lambda row: -row[1][1])
    rows.append(("all", [sum(column) for column in zip(*sums.values())]))
    for name, row in rows:
        number, wall, mean, longest, late, leave = (value / count for value in row)
        print(f"{name[:34]:34} {number:6.1f} {wall:8.1f} {mean:9.1f} {longest:8.1f} {late:7.1f} {leave:7.1f}")


if __name__ == "__main__":
    main()
