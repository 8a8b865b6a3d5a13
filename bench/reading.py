"""Training from S3 beside training from local disk: MXNet's own reader, staged files, and files that were there before.

One worker on one sandbox node, in turn; before each job what the one before has staged is removed. Then once more over
a link that is slower than the reading, where it counts that staged data stays.

What the jobs read is served by bench/s3_sink.py in place of the sandbox's own S3, which is Python on the same cores and
takes each object into memory before it sends. It speaks TLS, since MXNet's reader knows nothing else.
"""

import json
import os
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from bench.rounds import ROUNDS
from train.data.recordio import ImageRecord, encode_image, encode_record

CLUSTER = str(Path(sys.executable).parent / "cluster")
REPOSITORY = Path(__file__).parents[1]
PROGRAM = Path(__file__).with_name("read_epochs.py")
SHARDS, RECORDS = 4, 700  # 2800 images of 12 kB: 35 MB
REPEATS = 8  # of each image in its shard where the link is open: 280 MB. At each epoch's start reading begins anew
EPOCHS, EPOCHS_ON_SLOW_LINK, BATCH_SIZE = 2, 2, 28
URL = "s3://cluster-demo/images/"
LINK_MBIT = 40.0
MB_OF_IMAGE = 0.01245
FORGET = "rm -rf ~/.cluster/data"
LOCAL, NATIVE, STAGE = "local disk", "s3://, native", "s3://, stage"


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One job: seconds to its first batch, and samples/s of each epoch."""

    first_batch_s: float
    samples_per_s: tuple[float, ...]

    @property
    def after_first_batch(self) -> float:
        """Over all epochs, which are of the same length."""
        return statistics.harmonic_mean(self.samples_per_s)


class Sink:
    """bench/s3_sink.py with a folder's files. place: its address and port."""

    def __init__(self, folder: Path, url: str, *, address: str) -> None:
        command = [sys.executable, "-m", "bench.s3_sink", str(folder), url, "--tls", address]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
        assert self.process.stdout is not None
        self.place = f"{address}:{int(self.process.stdout.readline())}"


class Node:
    """A sandbox cluster of one node with a data set, in a folder of its own, and an S3 that is fast.

    link_mbit: of its link, 0 for unshaped. repeats: of each image.
    """

    def __init__(self, folder: Path, *, link_mbit: float, repeats: int) -> None:
        self.folder = folder
        self.env = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
        text = (REPOSITORY / "cluster" / "default.toml").read_text()
        settings = {
            "nodes = 2": "nodes = 1",
            "# sync = []": f'sync = ["images/", "{PROGRAM.name}"]',
            "s3://cluster-demo/digits/": URL,
            "# link_mbit = 0.0": f"link_mbit = {link_mbit}",
            '# name = "auto"': f"setup = {json.dumps([FORGET])} #",
        }
        for before, after in settings.items():
            assert before in text
            text = text.replace(before, after)
        self.toml = text
        (folder / "images").mkdir()
        draw = random.Random(1)
        for shard in range(SHARDS):
            data = b"".join(encode_record(encode_image(noise(draw, number))) for number in range(RECORDS))
            (folder / "images" / f"{shard}.rec").write_bytes(data * repeats)
        shutil.copy(PROGRAM, folder)
        (folder / "cluster.toml").write_text(self.toml)
        self.run("up")
        self.run("data", "put", "--create-bucket", "images/", URL)  # `cluster train` looks at it before each job
        self.sink = Sink(folder / "images", URL, address=self.find_gateway())

    def run(self, *words: str) -> str:
        """`cluster WORDS...`, in the folder."""
        done = subprocess.run(
            [CLUSTER, *words], cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if done.returncode != 0:
            sys.exit(f"cluster {' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def find_gateway(self) -> str:
        """The address of this machine that the node reaches, which the sandbox's own S3 has."""
        url = json.loads(self.run("sandbox", "status", "--json"))["endpoint_url"]
        return str(urlsplit(url).hostname)

    def measure(self, way: str, epochs: int) -> Run:
        """Run the job to its end."""
        mode = "stage" if way == STAGE else "native"
        (self.folder / "cluster.toml").write_text(self.toml.replace("[data]\n", f'[data]\nmode = "{mode}"\n'))
        local = ";".join(f"images/{shard}.rec" for shard in range(SHARDS))
        words = ["python", PROGRAM.name, local if way == LOCAL else URL, str(epochs), str(BATCH_SIZE)]
        places = [f"AWS_ENDPOINT_URL=https://{self.sink.place}", f"S3_ENDPOINT={self.sink.place}"]
        settings = [word for place in places for word in ("--env", place)]
        output = self.run("train", "--plain", "--kv-store", "local", "-n", "1", *settings, "--", *words)
        told = json.loads(next(line for line in output.splitlines() if "] READ " in line).partition("READ ")[2])
        return Run(first_batch_s=told["first_batch_s"], samples_per_s=tuple(told["samples_per_s"]))


def noise(draw: random.Random, number: int) -> ImageRecord:
    """An image of 64 by 64 pixels that cannot be compressed, as PNG."""
    rows = b"".join(b"\0" + draw.randbytes(64 * 3) for _ in range(64))
    header = struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows, 1)), (b"IEND", b"")]
    png = b"".join(struct.pack(">I", len(d)) + t + d + struct.pack(">I", zlib.crc32(t + d)) for t, d in chunks)
    return ImageRecord(labels=(float(number % 10),), record_id=number, image=b"\x89PNG\r\n\x1a\n" + png)


def measure_ways(ways: tuple[str, ...], *, epochs: int, link_mbit: float, repeats: int) -> dict[str, list[Run]]:
    """The job all ways in turn, on a node of its own."""
    folder = Path(tempfile.mkdtemp(prefix="cluster-bench-"))
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    runs: dict[str, list[Run]] = {way: [] for way in ways}
    node = None
    try:
        node = Node(folder, link_mbit=link_mbit, repeats=repeats)
        for count in range(ROUNDS + 1):
            for way in ways:
                found = node.measure(way, epochs)
                if count:  # the first round warms the machine up
                    runs[way].append(found)
    finally:
        if node is not None:
            node.sink.process.kill()
        subprocess.run([CLUSTER, "sandbox", "reset"], cwd=folder, env=environment, check=True, capture_output=True)
        shutil.rmtree(folder)
    return runs


def run() -> str:
    """Over the machine's own link, and over a slow one."""
    open_link = measure_ways((LOCAL, NATIVE, STAGE), epochs=EPOCHS, link_mbit=0.0, repeats=REPEATS)
    slow_link = measure_ways((NATIVE, STAGE), epochs=EPOCHS_ON_SLOW_LINK, link_mbit=LINK_MBIT, repeats=1)
    return render(open_link, slow_link)


def render(open_link: dict[str, list[Run]], slow_link: dict[str, list[Run]]) -> str:
    """The section of RESULTS.md."""
    images = SHARDS * RECORDS * REPEATS
    lines = [
        "## Training from S3",
        "",
        f"Training on {images} images of 64 by 64, {images * MB_OF_IMAGE:.0f} MB in {SHARDS} shards: {EPOCHS} epochs,",
        "one worker on one sandbox node. S3 is bench/s3_sink.py, on the same cores, over TLS.",
        f"Medians (min to max) of {ROUNDS} rounds. Before a job nothing is staged.",
        "samples/s: of all epochs, from the second batch on. First batch: from the import of MXNet on.",
        "",
        "| records from | samples/s | of local disk | first batch s |",
        "|---|---|---|---|",
    ]
    base = statistics.median(run.after_first_batch for run in open_link[LOCAL])
    for way, runs in open_link.items():
        rates = [run.after_first_batch for run in runs]
        ratio = statistics.median(rates) / base
        lines.append(f"| {way} | {spread(rates, 0)} | {ratio:.2f} | {spread([r.first_batch_s for r in runs], 1)} |")
    lines += [
        "",
        f"{SHARDS * RECORDS} of them over a link of {LINK_MBIT:.0f} Mbit/s, which is slower than the reading:",
        "",
        "| records from | first epoch | second epoch | of native | first batch s |",
        "|---|---|---|---|---|",
    ]
    base = statistics.median(run.samples_per_s[1] for run in slow_link[NATIVE])
    for way, runs in slow_link.items():
        first, second = ([run.samples_per_s[epoch] for run in runs] for epoch in (0, 1))
        ratio = statistics.median(second) / base
        cells = [spread(first, 0), spread(second, 0), f"{ratio:.1f}", spread([r.first_batch_s for r in runs], 1)]
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", "- all: `sudo python -m bench reading`", ""])


def spread(values: list[float], digits: int) -> str:
    """The median, and the range of the rounds."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"
