"""Compares training from S3, by MXNet's own reader or from files copied before the job, with training from local disk.

One worker runs on each sandbox node. The copied files are removed before the next job. The data are photographs as in
the recipe for ImageNet, and then the hardest case for a reader: small images that take almost no time to decode.
The latter are also read over a link that is slower than the reader, where files on the node matter, and 1 GB of them on
two nodes, beside `cluster data get` of the same shards, twice at once, on the same cores.

bench/s3/sink.py serves the data instead of the sandbox's own S3, which is Python on the same cores and loads each
object into memory before it sends it. The sink uses TLS, because MXNet's reader requires it.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from bench.records.data import NOISE, PHOTOGRAPHS, DataSet
from bench.support.command import CLUSTER, REPOSITORY, must_run
from bench.support.rounds import ROUNDS, spread

PROGRAM = Path(__file__).parent / "records" / "epochs.py"
REPEATS = 8  # of each image in its shard, with an unlimited link, because each epoch starts reading again
EPOCHS = 2
URL = "s3://cluster-demo/images/"
LINK_MBIT = 40.0
LARGE_REPEATS = 30  # about 1 GB
FORGET = ("exec", "--", "rm", "-rf", ".cluster/data")
LOCAL, NATIVE, STAGE = "local disk", "s3://, native", "s3://, stage"
GET = "`cluster data get`"


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One job: the seconds from the command to its first batch, and the samples/s of each epoch, of all workers."""

    first_batch_s: float
    samples_per_s: tuple[float, ...]

    @property
    def after_first_batch(self) -> float:
        """The samples/s over all epochs, which have the same length."""
        return statistics.harmonic_mean(self.samples_per_s)


class Sink:
    """A process of bench/s3/sink.py that serves a folder's files. place: its address and port."""

    def __init__(self, folder: Path, url: str, *, address: str) -> None:
        command = [sys.executable, "-m", "bench.s3.sink", str(folder), url, "--tls", address]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
        assert self.process.stdout is not None
        self.place = f"{address}:{int(self.process.stdout.readline())}"


class Node:
    """A sandbox cluster in its own folder, with a data set and a fast S3.

    link_mbit: the bandwidth of a node's link; 0 means no limit. repeats: the number of copies of each image.
    """

    def __init__(self, folder: Path, data: DataSet, *, nodes: int, link_mbit: float, repeats: int) -> None:
        self.folder, self.nodes = folder, nodes
        self.data = data
        self.env = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
        text = (REPOSITORY / "cluster" / "default.toml").read_text()
        settings = {
            "nodes = 2": f"nodes = {nodes}",
            '# sync = "auto"': f'sync = ["images/", "{PROGRAM.name}"]',
            "s3://cluster-demo/digits/": URL,
            "# link_mbit = 0.0": f"link_mbit = {link_mbit}",
        }
        for before, after in settings.items():
            assert before in text
            text = text.replace(before, after)
        self.toml = text
        (folder / "images").mkdir()
        data.write(folder / "images", repeats)
        self.megabytes = sum(path.stat().st_size for path in (folder / "images").iterdir()) / 1e6
        shutil.copy(PROGRAM, folder)
        (folder / "cluster.toml").write_text(self.toml)
        self.run("up")
        self.run("data", "put", "--create-bucket", "images/", URL)  # `cluster train` checks it before each job
        self.sink = Sink(folder / "images", URL, address=self.find_gateway())

    def run(self, *words: str) -> str:
        """Runs `cluster WORDS...` in the folder. Returns its output."""
        return must_run([CLUSTER, *words], cwd=self.folder, env=self.env)

    def find_gateway(self) -> str:
        """Returns the address of this machine that the node can reach, which is that of the sandbox's own S3."""
        url = json.loads(self.run("sandbox", "status", "--json"))["endpoint_url"]
        return str(urlsplit(url).hostname)

    def measure(self, way: str) -> Run:
        """Runs the job with one of the ways to read, and returns its measurements."""
        mode = "stage" if way == STAGE else "native"
        (self.folder / "cluster.toml").write_text(self.toml.replace("[data]\n", f'[data]\nmode = "{mode}"\n'))
        local = ";".join(f"images/{path.name}" for path in sorted((self.folder / "images").iterdir()))
        sizes = [EPOCHS if self.nodes == 1 else 1, self.data.batch_size, self.data.side]
        words = ["python", PROGRAM.name, local if way == LOCAL else URL, *map(str, sizes)]
        places = [f"AWS_ENDPOINT_URL=https://{self.sink.place}", f"S3_ENDPOINT={self.sink.place}"]
        settings = [word for place in places for word in ("--env", place)]
        kv_store = "dist_sync" if self.nodes > 1 else "local"
        self.run(*FORGET)
        began_at = time.time()
        output = self.run("train", "--plain", "--kv-store", kv_store, "-n", str(self.nodes), *settings, "--", *words)
        told = [json.loads(line.partition("READ ")[2]) for line in output.splitlines() if "] READ " in line]
        assert len(told) == self.nodes, output
        rates = zip(*(one["samples_per_s"] for one in told), strict=True)
        first_batch_s = max(one["first_batch_at"] for one in told) - began_at
        return Run(first_batch_s=first_batch_s, samples_per_s=tuple(map(sum, rates)))

    def get(self) -> float:
        """Runs `cluster data get` of the data here, once for each node at the same time. Returns the seconds."""
        env = {**self.env, "AWS_ENDPOINT_URL": f"https://{self.sink.place}"}
        with tempfile.TemporaryDirectory(prefix="cluster-bench-") as folder:
            began_at = time.time()
            commands = [[CLUSTER, "data", "get", URL, f"{folder}/{number}"] for number in range(self.nodes)]
            running = [subprocess.Popen(one, cwd=self.folder, env=env, stderr=subprocess.PIPE) for one in commands]
            for process in running:
                _, complaints = process.communicate()
                assert process.returncode == 0, complaints
            return time.time() - began_at


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """The jobs by way to read. megabytes: the size of the data set. get_s: the seconds of each `cluster data get`."""

    megabytes: float
    runs: dict[str, list[Run]]
    get_s: list[float]


def measure_ways(
    data: DataSet, ways: tuple[str, ...], *, nodes: int = 1, link_mbit: float = 0.0, repeats: int = REPEATS
) -> Results:
    """Measures the job with all ways to read, in turn, on new nodes; with two, also `cluster data get`."""
    folder = Path(tempfile.mkdtemp(prefix="cluster-bench-"))
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    runs: dict[str, list[Run]] = {way: [] for way in ways}
    get_s: list[float] = []
    node = None
    try:
        node = Node(folder, data, nodes=nodes, link_mbit=link_mbit, repeats=repeats)
        for count in range(ROUNDS + 1):
            for way in ways:
                found = node.measure(way)
                if count:  # the first round warms the machine up
                    runs[way].append(found)
            if nodes > 1 and count:
                get_s.append(node.get())
        return Results(megabytes=node.megabytes, runs=runs, get_s=get_s)
    finally:
        if node is not None:
            node.sink.process.kill()
        subprocess.run(
            [CLUSTER, "sandbox", "stop", "--yes"], cwd=folder, env=environment, check=True, capture_output=True
        )
        shutil.rmtree(folder)


def run() -> str:
    """Runs the benchmark with an unlimited link and a slow one. Returns its section of RESULTS.md."""
    everywhere = (LOCAL, NATIVE, STAGE)
    lines = [
        "## Training from S3",
        "",
        f"{EPOCHS} epochs (two nodes: 1), one worker on each sandbox node. S3 is bench/s3/sink.py, over TLS, on",
        "the same cores.",
        f"Medians (min to max) of {ROUNDS} rounds. Before a job no data is on the node.",
        "samples/s: of all epochs, from the second batch on. First batch: from the start of `cluster train` on.",
        *render_open(PHOTOGRAPHS, measure_ways(PHOTOGRAPHS, everywhere)),
        *render_open(NOISE, measure_ways(NOISE, everywhere)),
        *render_large(NOISE, measure_ways(NOISE, everywhere, nodes=2, repeats=LARGE_REPEATS)),
        *render_slow(NOISE, measure_ways(NOISE, (NATIVE, STAGE), link_mbit=LINK_MBIT, repeats=1)),
    ]
    return "\n".join([*lines, "", "- all: `sudo python -m bench reading`", ""])


def render_large(data: DataSet, results: Results) -> list[str]:
    """Returns the table for two nodes, and what copying costs a job that reads only a part of its data."""
    get_s = statistics.median(results.get_s)
    first = {way: statistics.median(run.first_batch_s for run in runs) for way, runs in results.runs.items()}
    later_s, part_s = first[STAGE] - first[LOCAL], first[STAGE] - first[NATIVE]
    return [
        *render_open(data, results, repeats=LARGE_REPEATS, where=", on each of two nodes"),
        "",
        f"{GET} of the same shards, twice at once, here: {spread(results.get_s, 1)} s. With stage, the first batch",
        f"comes {later_s:.1f} s later than from local disk, {later_s / get_s:.2f} times as much, and",
        f"{part_s:.1f} s later than with native, which is what stage costs a job that reads only a part of its data.",
    ]


def render_open(data: DataSet, results: Results, *, repeats: int = REPEATS, where: str = "") -> list[str]:
    """Returns the table for the unlimited link."""
    base = statistics.median(run.after_first_batch for run in results.runs[LOCAL])
    size = f"{data.images * repeats} of them, {results.megabytes:.0f} MB in {data.shards} shards{where}:"
    lines = ["", f"{data.what}; {size}", ""]
    lines += ["| records from | samples/s | of local disk | MB/s | first batch s |", "|---|---|---|---|---|"]
    for way, runs in results.runs.items():
        rates = [run.after_first_batch for run in runs]
        middle = statistics.median(rates)
        speed = middle * results.megabytes / (data.images * repeats)
        cells = [spread(rates, 0), f"{middle / base:.2f}", f"{speed:.0f}", spread([r.first_batch_s for r in runs], 1)]
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return lines


def render_slow(data: DataSet, results: Results) -> list[str]:
    """Returns the table for the slow link."""
    base = statistics.median(run.samples_per_s[1] for run in results.runs[NATIVE])
    lines = [
        "",
        f"{data.images} of these over a link of {LINK_MBIT:.0f} Mbit/s, which is slower than the reading:",
        "",
        "| records from | first epoch | second epoch | of native | first batch s |",
        "|---|---|---|---|---|",
    ]
    for way, runs in results.runs.items():
        first, second = ([run.samples_per_s[epoch] for run in runs] for epoch in (0, 1))
        ratio = statistics.median(second) / base
        cells = [spread(first, 0), spread(second, 0), f"{ratio:.1f}", spread([r.first_batch_s for r in runs], 1)]
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return lines
