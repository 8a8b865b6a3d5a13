"""`cluster train` beside launch.py typed by hand, on the same two sandbox nodes.

By hand means: over ssh on the head, the wheel's own tools/launch.py (with Thread.isAlive put back, as every Python
since 3.9 needs it), the same processes on each node, the same script and arguments, and on every node a file with the
environment, as the guides say; ssh is OpenSSH as it comes. Once with the settings that `cluster train` chooses, once
with launch.py's defaults, which leave OMP_NUM_THREADS unset and start as many servers as workers. What `cluster train`
does beside that counts for it: looking at the nodes, temporary credentials, supervision, the record, the search for
what is left.

That costs some time once for each job; so a longer job is measured, too. And one with two workers on each node, where
the settings differ by more than a variable. What supervision costs while the job trains is told by the CPU time of all
that runs on the nodes beside the job's own processes, from the first batch to the last epoch: it cannot slow the
training down by more than it takes away from it.

A virtual machine's speed wanders by a tenth and more within a minute, so that one long job is no measure for the next.
So the longer job is run both ways at once, each on a cluster of its own; every other round they change places. Both
have the same machine then, and what one of them takes beside its job is missed by both.
"""

import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.cpu_times import grown, read_cpu_times
from bench.rounds import ROUNDS
from train.job.payload import SCRIPTS_DIR

CLUSTER = str(Path(sys.executable).parent / "cluster")
REPOSITORY = Path(__file__).parents[1]
SCRIPT = "train_mnist.py"
ARGUMENTS = ["--network", "mlp", "--disp-batches", "10"]
SSH_CONFIG = """\
Host *
  IdentityFile ~/.cluster/ssh/id_ed25519
  UserKnownHostsFile ~/.cluster/ssh/known_hosts
  LogLevel ERROR
"""
# Prints what a process of a job sees, for the one that is started by hand.
PROGRAM = "import json, os, sys; print('SEEN', json.dumps([dict(os.environ), sys.executable, os.getcwd()]))"
SPEED = re.compile(r"Batch \[\S+\]\s+Speed: ([\d.]+) samples/sec")
TRAIN = [CLUSTER, "train", "--kv-store", "dist_sync"]
BY_CLUSTER = "cluster train"
WITH_OURS = "launch.py by hand, the same settings"
WITH_DEFAULTS = "launch.py by hand, its defaults"


@dataclass(frozen=True, kw_only=True, slots=True)
class JobShape:
    """What is run, and how often. servers: as many as `cluster train` chooses on two nodes of two cores.

    at_once: `cluster train` and by hand, and not with launch.py's defaults.
    """

    epochs: int
    workers: int = 2
    servers: int = 2
    rounds: int = ROUNDS
    at_once: bool = False


JOBS = (JobShape(epochs=60), JobShape(epochs=60, workers=4), JobShape(epochs=240, at_once=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run of the job, seconds from the start of the command."""

    wall_s: float
    first_batch_s: float
    samples_per_s: float
    training_s: float  # the CPU time of the job's processes from the first batch to the last epoch
    beside: float  # that of what ran on the nodes beside them, as a share of it


class Cluster:
    """A sandbox cluster of two nodes in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
        text = (REPOSITORY / "cluster" / "default.toml").read_text()
        self.toml = [line for line in text.splitlines() if not line.startswith("args = ")]
        self.set_job(JOBS[0])

    def set_job(self, job: JobShape) -> None:
        """What `cluster train` runs."""
        arguments = json.dumps([*ARGUMENTS, "--num-epochs", str(job.epochs)])
        section = f"[train]\nargs = {arguments}\nworkers = {job.workers}"
        lines = [section if line == "[train]" else line for line in self.toml]
        assert lines != self.toml
        (self.folder / "cluster.toml").write_text("\n".join(lines))

    def run(self, *words: str) -> str:
        """`cluster WORDS...`, in the folder."""
        done = subprocess.run(
            [CLUSTER, *words], cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if done.returncode != 0:
            sys.exit(f"cluster {shlex.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def set_up(self) -> None:
        """Nodes, and the digits in S3."""
        self.run("up")
        self.run("data", "demo", "digits")
        self.run("data", "put", "--create-bucket", "digits/", "s3://cluster-demo/digits/")

    def find_key(self) -> Path:
        """The file of the cluster's SSH key."""
        (key,) = (self.folder / "state").rglob("id_ed25519")
        return key

    def find_sandbox(self) -> str:
        """The sandbox's name among others of this machine."""
        return self.find_key().parents[1].name.removeprefix("sandbox-")

    def ssh_words(self, address: str, command: str) -> list[str]:
        """What runs a command on a node."""
        options = ["-i", str(self.find_key()), "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
        return ["ssh", *options, "-o", "LogLevel=ERROR", f"ubuntu@{address}", command]

    def ssh(self, address: str, command: str) -> None:
        """A command on a node."""
        subprocess.run(self.ssh_words(address, command), stdin=subprocess.DEVNULL, check=True)

    def measure(self, words: list[str], job: JobShape) -> Run:
        """Run the job to its end; end the benchmark if it did not do its work."""
        sandbox = self.find_sandbox()
        started = time.perf_counter()
        first_batch_s = None
        speeds = []
        lines = []
        before = after = None
        last = f"Epoch[{job.epochs - 1}] Batch"
        with subprocess.Popen(
            words, cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    lines.append(line)
                    if found := SPEED.search(line):
                        first_batch_s = first_batch_s or time.perf_counter() - started
                        speeds.append(float(found[1]))
                        before = before or read_cpu_times(sandbox, SCRIPT)
                        after = after or (read_cpu_times(sandbox, SCRIPT) if last in line else None)
            except BaseException:
                process.kill()
                raise
        wall_s = time.perf_counter() - started
        output = "".join(lines)
        done = output.count(f"Epoch[{job.epochs - 1}] Validation-accuracy") == job.workers
        if not done or first_batch_s is None or before is None or after is None:
            sys.exit(f"the job did not do its work:\n{output}")
        training_s = grown(before.job, after.job)
        return Run(
            wall_s=wall_s,
            first_batch_s=first_batch_s,
            samples_per_s=job.workers * statistics.median(speeds),
            training_s=training_s,
            beside=grown(before.others, after.others) / training_s,
        )


def prepare_by_hand(cluster: Cluster, job: JobShape) -> dict[str, list[str]]:
    """Put on the nodes what launch.py by hand needs; what is to be typed for each way."""
    nodes = json.loads(cluster.run("status", "--json"))["nodes"]
    seen = cluster.run("train", "--kv-store", "local", "-n", "1", "--", "python", "-c", PROGRAM)
    line = next(line for line in seen.splitlines() if "] SEEN" in line)
    env, python, tree = json.loads(line.partition("SEEN ")[2])
    exports = {key: value for key, value in env.items() if key.startswith(("S3_", "AWS_")) or key == "CLUSTER_DATA_URL"}
    arguments = [*ARGUMENTS, "--num-epochs", str(job.epochs), "--kv-store", "dist_sync"]
    words = [python, f"{tree}/{SCRIPTS_DIR}/{SCRIPT}", *arguments]
    hosts = "".join(f"{node['private_ip']}\n" for node in nodes)
    head = nodes[0]["public_ip"]
    # What `cluster train` chooses for these processes on two cores.
    for file, settings in (("ours.sh", {"OMP_NUM_THREADS": "1"}), ("defaults.sh", {})):
        script = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in {**exports, **settings}.items())
        script += f"exec {shlex.join(words)}\n"
        for node in nodes:
            cluster.ssh(node["public_ip"], f"printf %s {shlex.quote(script)} >{file}")
    cluster.ssh(head, f"printf %s {shlex.quote(SSH_CONFIG)} >.ssh/config; printf %s {shlex.quote(hosts)} >hosts")
    site = f"{Path(python).parents[1]}/lib/python3*/site-packages"
    launch = f"{python} {site}/mxnet/tools/launch.py -n {job.workers} -H hosts --launcher ssh"
    return {
        WITH_OURS: cluster.ssh_words(head, f"{launch} -s {job.servers} bash ours.sh 2>&1"),
        WITH_DEFAULTS: cluster.ssh_words(head, f"{launch} bash defaults.sh 2>&1"),
    }


def run() -> str:
    """The same jobs all ways, in turn or at once."""
    clusters = [Cluster(Path(tempfile.mkdtemp(prefix="cluster-bench-"))) for _ in range(2)]
    try:
        for cluster in clusters:
            cluster.set_up()
        runs = {
            job: measure_at_once(clusters, job) if job.at_once else measure_in_turn(clusters[0], job) for job in JOBS
        }
    finally:
        for cluster in clusters:
            cluster.run("sandbox", "reset")
            shutil.rmtree(cluster.folder)
    return render(runs)


def measure_in_turn(cluster: Cluster, job: JobShape) -> dict[str, list[Run]]:
    """A job by `cluster train` and by hand, in turn."""
    cluster.set_job(job)
    ways = {BY_CLUSTER: TRAIN, **prepare_by_hand(cluster, job)}
    runs: dict[str, list[Run]] = {name: [] for name in ways}
    for count in range(job.rounds + 1):
        for name, words in ways.items() if count % 2 else reversed(ways.items()):
            found = cluster.measure(words, job)
            if count:  # the first round warms the machine up
                runs[name].append(found)
    return runs


def measure_at_once(clusters: Sequence[Cluster], job: JobShape) -> dict[str, list[Run]]:
    """A job by `cluster train` on one cluster and by hand on the other, at the same time."""
    for cluster in clusters:
        cluster.set_job(job)
    by_hand = [prepare_by_hand(cluster, job)[WITH_OURS] for cluster in clusters]
    runs: dict[str, list[Run]] = {BY_CLUSTER: [], WITH_OURS: []}
    with ThreadPoolExecutor(len(clusters)) as pool:
        for count in range(job.rounds + 1):
            here = count % 2
            ours = pool.submit(clusters[here].measure, TRAIN, job)
            theirs = pool.submit(clusters[1 - here].measure, by_hand[1 - here], job)
            found = {BY_CLUSTER: ours.result(), WITH_OURS: theirs.result()}
            if count:  # the first round warms the machine up
                for name, one in found.items():
                    runs[name].append(one)
    return runs


def render(runs: dict[JobShape, dict[str, list[Run]]]) -> str:
    """The section of RESULTS.md."""
    lines = [
        "## `cluster train` beside launch.py by hand",
        "",
        "train_mnist.py, MLP, digits read from s3://, dist_sync, on 2 sandbox nodes. Medians (min to max) of the",
        "rounds; every other round goes the other way around. Ratio: the wall time to that of the same settings by",
        "hand in the same round, since this machine is faster in one minute than in the next. At once: each on a",
        "cluster of its own, so that both have the same machine, and half of it. First batch: from the",
        "command to the first line of MXNet's Speedometer (10 batches). samples/s: of all workers, the median of",
        "all lines. Training CPU: of the job's own processes from the first batch to the last epoch; the work is the",
        "same each time, so that this tells how fast the machine was. CPU beside: of all that runs on the nodes beside",
        "them meanwhile, as a share of it; each node's look at the job's data is among it, once.",
    ]
    for job, found in runs.items():
        lines += ["", *_table(found, job)]
    return "\n".join([*lines, "", "- all: `sudo python -m bench train`", ""])


def _table(runs: dict[str, list[Run]], job: JobShape) -> list[str]:
    what = f"{job.workers} workers, {job.epochs} epochs, {job.rounds} rounds{', both at once' if job.at_once else ''}"
    lines = [
        f"| {what} | wall s | ratio | first batch s | samples/s | training CPU s | CPU beside % |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in runs.items():
        ratios = [run.wall_s / base.wall_s for run, base in zip(found, runs[WITH_OURS], strict=True)]
        cells = [
            name,
            _spread([run.wall_s for run in found], 2),
            _spread(ratios, 2),
            _spread([run.first_batch_s for run in found], 2),
            _spread([run.samples_per_s for run in found], 0),
            _spread([run.training_s for run in found], 1),
            _spread([100 * run.beside for run in found], 2),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _spread(values: list[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"
