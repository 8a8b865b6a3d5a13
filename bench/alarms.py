"""Counts how often jobs that are slow, but do not hang, are reported as hanging. Each kind on a cluster of its own.

    CLUSTER_BENCH_ROUNDS=2 python -m bench alarms    (default: 20 jobs of each kind)

One of two workers takes SLOW_S for something and prints nothing; a job that hangs is reported after a quarter of this.
"""

import os
import socketserver
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from bench.support.command import CLUSTER
from bench.support.jobs import Cluster

ROUNDS = int(os.environ.get("CLUSTER_BENCH_ROUNDS", "20"))
SLOW_S, TIMEOUT_S = 16, 8
KINDS = ("evaluate", "load", "build", "save")
SLOW = """\
import os, socket, subprocess, sys, time
import mxnet as mx
def evaluate(): mx.nd.dot(mx.nd.ones((200, 200)), mx.nd.ones((200, 200))).wait_to_read()
def load(): stream.recv(1 << 20)  # from this machine, which is no host of the job
def build(): subprocess.run([sys.executable, "-c", "compile('a = 1\\\\n' * 30000, '', 'exec')"], check=True)
def save():
    with open("checkpoint", "ab") as stream:
        stream.write(os.urandom(1 << 20))
        os.fsync(stream.fileno())
    time.sleep(0.2)
kv, out, until = mx.kv.create("dist_sync"), mx.nd.zeros(9), time.monotonic() + float(sys.argv[3])
kv.init("a", mx.nd.ones(9))
stream = socket.create_connection((os.environ["S3_ENDPOINT"].partition(":")[0], int(sys.argv[2])))
for step in range(20):
    while step == 10 and kv.rank == 1 and time.monotonic() < until:
        globals()[sys.argv[1]]()
    kv.push("a", mx.nd.ones(9))
    kv.pull("a", out=out)
    out.wait_to_read()
"""


class SlowData(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        """Sends 32 kB/s."""
        for _ in range(2 * SLOW_S):
            self.request.sendall(bytes(1 << 14))
            time.sleep(0.5)


def run() -> str:
    """Runs the benchmark and returns its section of RESULTS.md."""
    server = socketserver.ThreadingTCPServer(("", 0), SlowData)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with ThreadPoolExecutor(len(KINDS)) as pool:
        found = dict(zip(KINDS, pool.map(partial(count_alarms, port=server.server_address[1]), KINDS), strict=True))
    what = f"stall_timeout = {TIMEOUT_S} s; a worker is slow for {SLOW_S} s; 2 nodes; load {os.getloadavg()[0]:.1f}."
    lines = ["## False alarms", "", what, "", "| a worker | jobs | reported as hanging |", "|---|---|---|"]
    lines += [f"| {kind} | {ROUNDS} | {alarms} |" for kind, alarms in found.items()]
    return "\n".join([*lines, "", "- all: `sudo python -m bench alarms`", ""])


def count_alarms(kind: str, *, port: int) -> int:
    """Runs the jobs of a kind, one after another. Returns how many are reported."""
    with tempfile.TemporaryDirectory(prefix="cluster-bench-") as folder:
        cluster = Cluster(Path(folder))
        (cluster.folder / "slow.py").write_text(SLOW)
        (cluster.folder / "slow.toml").write_text(f'stall_timeout = "{TIMEOUT_S}s"\n')
        try:
            cluster.run("up")
            return sum(has_alarm(cluster, kind, port) for _ in range(ROUNDS))
        finally:
            cluster.run("sandbox", "stop", "--yes")


def has_alarm(cluster: Cluster, kind: str, port: int) -> bool:
    """Runs a job. Returns whether it is reported as hanging."""
    words = [CLUSTER, "train", "--job", "slow.toml", "-n", "2", "--", "python", "slow.py", kind, str(port), str(SLOW_S)]
    done = subprocess.run(words, cwd=cluster.folder, env=cluster.env, capture_output=True, text=True, check=False)
    alarms = [line for line in (done.stdout + done.stderr).splitlines() if "made progress" in line]
    print(f"{kind}: {alarms[:1] or 'no alarm'}; load {os.getloadavg()[0]:.1f}", flush=True)
    assert alarms or done.returncode == 0, done.stderr
    return bool(alarms)
