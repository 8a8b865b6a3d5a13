"""Counts how often `cluster jobs` names the right worker of a synchronous job on two sandbox nodes.

    python -m bench stragglers                      ROUNDS runs with one slowed node, and as many even ones
    CLUSTER_BENCH_ROUNDS=2 python -m bench stragglers

Each step of the job, a worker computes for STEP_S of CPU time and waits for the other one. The slowed one, in turn that
on each node, has SLOWER times as much to compute: as if its CPU were that much slower.
"""

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

from bench.support.command import CLUSTER
from bench.support.jobs import Cluster

ROUNDS = int(os.environ.get("CLUSTER_BENCH_ROUNDS", "20"))
SLOWER = 1.5
STEP_S = 0.2
WITHIN_S, ASKS_EVERY_S = 30.0, 5.0  # `cluster jobs` needs a CPU for a second, which the nodes share
START_TIMEOUT_S = 120.0
STEPS = """\
import os, socket, sys, time
rank = int(os.environ["CLUSTER_RANK"])
place = os.environ["CLUSTER_INIT_METHOD"].removeprefix("tcp://").rsplit(":", 1)
place = (place[0], int(place[1]))
if rank == 0:
    with socket.create_server(("", place[1])) as server:
        other = server.accept()[0]
while rank == 1:
    try:
        other = socket.create_connection(place)
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
print("begun", flush=True)
work_s = float(sys.argv[2 + rank])
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    until = time.process_time() + work_s
    while time.process_time() < until:
        sum(range(10000))
    other.sendall(b"x")
    if not other.recv(1):
        break
"""


def run() -> str:
    """Runs the benchmark and returns its section of RESULTS.md."""
    with tempfile.TemporaryDirectory(prefix="cluster-bench-") as folder:
        cluster = Cluster(Path(folder), 'framework = "none"')
        (cluster.folder / "steps.py").write_text(STEPS)
        try:
            cluster.run("up")
            found = {
                kind: [name_straggler(cluster, slow if kind == "slowed" else None) for slow in slowed()]
                for kind in ("slowed", "even")
            }
        finally:
            cluster.run("sandbox", "stop", "--yes")
    return render(found)


def slowed() -> list[int]:
    """Returns the rank that is slowed in each round."""
    return [number % 2 for number in range(ROUNDS)]


def name_straggler(cluster: Cluster, slow: int | None) -> str:
    """Runs a job until a worker is named, at most for WITHIN_S. Returns "right", "wrong" or "none"."""
    work = [f"{STEP_S * (SLOWER if rank == slow else 1)}" for rank in range(2)]
    words = ["train", "-n", "2", "--launcher", "env", "--kv-store", "none", "--plain", "--", "python3", "steps.py"]
    with subprocess.Popen(
        [CLUSTER, *words, str(WITHIN_S + START_TIMEOUT_S), *work], cwd=cluster.folder, env=cluster.env,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            assert any("begun" in line for line in process.stdout), "the job does not begin"
            began, named = time.monotonic(), None
            while named is None and time.monotonic() < began + WITHIN_S:
                time.sleep(ASKS_EVERY_S)
                (job, *_) = json.loads(cluster.run("jobs", "--json"))
                (shown,) = json.loads(cluster.run("jobs", job["id"], "--json"))
                named = shown["straggler"]
            took_s = time.monotonic() - began
            cluster.run("stop", job["id"])
        finally:
            process.terminate()
    print(f"slowed: {slow}; after {took_s:.0f} s: {named['why'] if named else None}", flush=True)
    return "none" if named is None else "right" if named["rank"] == slow else "wrong"


def render(found: dict[str, list[str]]) -> str:
    """Returns the section of RESULTS.md."""
    lines = ["## Stragglers", "", f"A worker is named within {WITHIN_S:.0f} s of the first step; 2 nodes.", ""]
    lines += ["| runs | number | right one named | wrong one named | none named |", "|---|---|---|---|---|"]
    for kind, results in found.items():
        counts = " | ".join(str(results.count(name)) for name in ("right", "wrong", "none"))
        lines.append(f"| {kind} | {len(results)} | {counts} |")
    load = f"Load average (1 minute) at the end: {os.getloadavg()[0]:.1f}, on {os.cpu_count()} cores."
    return "\n".join([*lines, "", load, "", "- all: `sudo python -m bench stragglers`", ""])
