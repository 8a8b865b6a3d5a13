"""Code that the benchmarks of whole jobs share: clusters of two sandbox nodes, runs of a job, and a table of results.

The speed of a virtual machine changes by 10 % and more within a minute, which is too much to compare long jobs that run
one after the other. A job that runs "at once" runs both ways at the same time, each on its own cluster, so that both
have the same machine. They swap clusters in every other round.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.support.command import CLUSTER, REPOSITORY, must_run
from bench.support.cpu_times import grown, read_cpu_times
from bench.support.rounds import ROUNDS, spread

BY_CLUSTER = "cluster train"
# Prints the environment of a process in a job. A process that is started by hand gets the same environment.
_PROGRAM = """\
import glob, json, os, sys
[scripts] = glob.glob(os.path.expanduser("~/.cluster/runtime/*/train/scripts"))
print("SEEN", json.dumps([dict(os.environ), sys.executable, scripts.removesuffix("/train/scripts")]))
"""
_EXPORTED = ("S3_", "AWS_", "CLUSTER_DATA_URL", "OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME")
_SPEED = re.compile(r"Batch \[\S+\]\s+Speed: ([\d.]+) samples/sec")


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A job to run, and the number of rounds.

    script: a script that ships with cluster. settings: more lines of [train]. at_once: see above.
    """

    script: str
    arguments: tuple[str, ...]
    epochs: int
    settings: str
    workers: int = 2
    rounds: int = ROUNDS
    at_once: bool = False

    @property
    def words(self) -> list[str]:
        """All arguments for the script."""
        return [*self.arguments, "--num-epochs", str(self.epochs)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run of the job. Times are in seconds from the start of the command."""

    wall_s: float
    first_batch_s: float
    end_s: float  # from the last line of the last epoch to the end of the command
    samples_per_s: float
    training_s: float  # the CPU time of the job's processes from the first batch to the sixth last epoch
    beside: float  # the CPU time of all other processes on the nodes, as a share of training_s


class Cluster:
    """A sandbox cluster of two nodes in its own folder. bootstrap: more lines of [bootstrap]."""

    def __init__(self, folder: Path, bootstrap: str = "") -> None:
        self.folder = folder
        self.env = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
        text = (REPOSITORY / "cluster" / "default.toml").read_text()
        text = text.replace("[bootstrap]\n", f"[bootstrap]\n{bootstrap}\n")
        self.toml = [line for line in text.splitlines() if not line.startswith(("script = ", "args = "))]
        self._write("")

    def set_job(self, job: Job) -> None:
        """Sets the job that `cluster train` runs."""
        self._write(f"script = {json.dumps(job.script)}\nargs = {json.dumps(job.words)}\n{job.settings}")

    def _write(self, settings: str) -> None:
        lines = [f"[train]\n{settings}" if line == "[train]" else line for line in self.toml]
        assert lines != self.toml
        (self.folder / "cluster.toml").write_text("\n".join(lines))

    def run(self, *words: str) -> str:
        """Runs `cluster WORDS...` in the folder. Returns its output."""
        return must_run([CLUSTER, *words], cwd=self.folder, env=self.env)

    def set_up(self) -> None:
        """Creates the nodes, and uploads the digits to S3."""
        self.run("up")
        self.run("data", "demo", "digits")
        self.run("data", "put", "--create-bucket", "digits/", "s3://cluster-demo/digits/")

    def find_nodes(self) -> list[dict[str, str]]:
        """Returns the nodes with their addresses, the head first."""
        nodes: list[dict[str, str]] = json.loads(self.run("status", "--json"))["nodes"]
        return nodes

    def see_process(self, *options: str) -> tuple[dict[str, str], str, str]:
        """Returns the data variables and the Python of a process of a job, and the folder of this project's code."""
        output = self.run("train", *options, "--", "python", "-c", _PROGRAM)
        line = next(line for line in output.splitlines() if "] SEEN" in line)
        env, python, folder = json.loads(line.partition("SEEN ")[2])
        return {key: value for key, value in env.items() if key.startswith(_EXPORTED)}, python, folder

    def find_key(self) -> Path:
        """Returns the path of the cluster's private SSH key."""
        (key,) = (self.folder / "state").rglob("id_ed25519")
        return key

    def find_sandbox(self) -> str:
        """Returns the id of the cluster's sandbox."""
        return self.find_key().parents[1].name.removeprefix("sandbox-")

    def ssh_words(self, address: str, command: str) -> list[str]:
        """Returns the ssh command that runs a command on a node."""
        options = ["-i", str(self.find_key()), "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
        return ["ssh", *options, "-o", "LogLevel=ERROR", f"ubuntu@{address}", command]

    def ssh(self, address: str, command: str) -> None:
        """Runs a command on a node. Raises CalledProcessError if it fails."""
        subprocess.run(self.ssh_words(address, command), stdin=subprocess.DEVNULL, check=True)

    def write_script(self, address: str, name: str, exports: Mapping[str, str], words: Sequence[str]) -> None:
        """Writes a shell script to a node's home that exports variables and runs a command."""
        script = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in exports.items())
        script += f"exec {shlex.join(words)}\n"
        self.ssh(address, f"printf %s {shlex.quote(script)} >{name}")

    def measure(self, words: list[str], job: Job) -> Run:
        """Runs the job to its end and returns its measurements. Ends the benchmark if the job fails."""
        sandbox = self.find_sandbox()
        started = time.perf_counter()
        first_batch_s = None
        ended = started
        speeds = []
        lines = []
        before = after = None
        last, near_end = f"Epoch[{job.epochs - 1}]", f"Epoch[{job.epochs - 6}] Batch"  # lines may come 0.4 s late
        with subprocess.Popen(
            words, cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    lines.append(line)
                    if f"{last} Validation" in line:
                        ended = time.perf_counter()
                    if found := _SPEED.search(line):
                        first_batch_s = first_batch_s or time.perf_counter() - started
                        speeds.append(float(found[1]))
                        before = before or read_cpu_times(sandbox, job.script)
                        after = after or (read_cpu_times(sandbox, job.script) if near_end in line else None)
            except BaseException:
                process.kill()
                raise
        now = time.perf_counter()
        output = "".join(lines)
        done = output.count(f"{last} Validation-accuracy") == job.workers
        if not done or first_batch_s is None or before is None or after is None:
            sys.exit(f"the job did not do its work:\n{output}")
        training_s = grown(before.job, after.job)
        return Run(
            wall_s=now - started,
            first_batch_s=first_batch_s,
            end_s=now - ended,
            samples_per_s=job.workers * statistics.median(speeds),
            training_s=training_s,
            beside=grown(before.others, after.others) / training_s,
        )


@contextmanager
def clusters(count: int, bootstrap: str = "") -> Iterator[list[Cluster]]:
    """Creates clusters that are ready to train, and removes them at the end of the block."""
    made = [Cluster(Path(tempfile.mkdtemp(prefix="cluster-bench-")), bootstrap) for _ in range(count)]
    try:
        for cluster in made:
            cluster.set_up()
        yield made
    finally:
        for cluster in made:
            cluster.run("sandbox", "stop", "--yes")
            shutil.rmtree(cluster.folder)


# Prepares a cluster to run a job by hand. Returns the command of each way, by name.
Prepare = Callable[[Cluster, Job], Mapping[str, list[str]]]


def measure(made: Sequence[Cluster], job: Job, prepare: Prepare, train: list[str]) -> dict[str, list[Run]]:
    """Measures a job by `cluster train` (the command `train`) and by hand.

    The ways run in turn, or, if the job is at_once, at the same time with the first way by hand.
    """
    for cluster in made:
        cluster.set_job(job)
    if job.at_once:
        return _measure_at_once(made, job, prepare, train)
    ways = {BY_CLUSTER: train, **prepare(made[0], job)}
    runs: dict[str, list[Run]] = {name: [] for name in ways}
    for count in range(job.rounds + 1):
        for name, words in ways.items() if count % 2 else reversed(ways.items()):
            found = made[0].measure(words, job)
            if count:  # the first round warms the machine up
                runs[name].append(found)
    return runs


def _measure_at_once(made: Sequence[Cluster], job: Job, prepare: Prepare, train: list[str]) -> dict[str, list[Run]]:
    by_hand = [next(iter(prepare(cluster, job).items())) for cluster in made]
    name = by_hand[0][0]
    runs: dict[str, list[Run]] = {BY_CLUSTER: [], name: []}
    with ThreadPoolExecutor(len(made)) as pool:
        for count in range(job.rounds + 1):
            here = count % 2
            ours = pool.submit(made[here].measure, train, job)
            theirs = pool.submit(made[1 - here].measure, by_hand[1 - here][1], job)
            found = {BY_CLUSTER: ours.result(), name: theirs.result()}
            if count:  # the first round warms the machine up
                for way, one in found.items():
                    runs[way].append(one)
    return runs


def render_table(runs: Mapping[str, list[Run]], job: Job, *, base: str) -> list[str]:
    """Returns the lines of a job's table. Ratios are relative to the way `base`."""
    what = f"{job.workers} workers, {job.epochs} epochs, {job.rounds} rounds{', both at once' if job.at_once else ''}"
    lines = [
        f"| {what} | wall s | ratio | first batch s | end s | samples/s | training CPU s | CPU beside % |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, found in runs.items():
        ratios = [run.wall_s / other.wall_s for run, other in zip(found, runs[base], strict=True)]
        cells = [
            name,
            spread([run.wall_s for run in found], 2),
            spread(ratios, 2),
            spread([run.first_batch_s for run in found], 2),
            spread([run.end_s for run in found], 2),
            spread([run.samples_per_s for run in found], 0),
            spread([run.training_s for run in found], 1),
            spread([100 * run.beside for run in found], 2),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines
