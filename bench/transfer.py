"""Compares `cluster data put` and `get` with s5cmd, for one large file and a thousand small ones."""

import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.support.rounds import Timing, interleave, render_timings

BIN = Path(sys.executable).parent
SMALL_FILES = 1000
SMALL_BYTES = 100_000
BUCKET = "bench"
_SMALL = f"{SMALL_FILES} files of {SMALL_BYTES // 1000} kB"
_ENDPOINT = ("AWS_ENDPOINT_URL", "S3_ENDPOINT_URL")
_CLUSTER, _S5CMD = BIN / "cluster", (BIN / "s5cmd", "--log", "error")
NOTES = """Each command as it is typed, from the start of its process to its end, against bench/s3/sink.py: an S3 in a
process of its own on this machine, which drops what is put and serves what is got from one file by sendfile, so that it
is not the bottleneck. All over plain HTTP. `cluster` sends SHA-256, and compares on get what S3 keeps (here CRC-32);
s5cmd's uploads carry MD5 and SHA-256, its downloads are not verified, and "obstore alone" is the library by which
`cluster` transfers, in a bare program that verifies nothing either. Every put is to names that are not there yet.
"Each answer 20 ms late": the sink sleeps before it answers, as S3 takes its time; that shows how many requests are on
their way at once. Peaks of memory are upper bounds: the kernel counts what the benchmark's own process had, too."""
LATENCY_MS = 20
# The library alone, with the fastest settings on this machine: ranges of 8 MiB by six threads, not verified.
OBSTORE_GET = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
import obstore
store = obstore.store.S3Store(sys.argv[1], config={"endpoint": os.environ["AWS_ENDPOINT_URL"]},
                              client_options={"allow_http": True})
size = obstore.head(store, sys.argv[2])["size"]
file = os.open(sys.argv[3], os.O_CREAT | os.O_WRONLY)
def fetch(begin):
    at = begin
    for block in obstore.get(store, sys.argv[2], options={"range": (begin, min(begin + 2**23, size))}).stream(2**18):
        at += os.pwrite(file, memoryview(block), at)
with ThreadPoolExecutor(6) as pool:
    list(pool.map(fetch, range(0, size, 2**23)))
"""


@dataclass
class Bench:
    """The folder, the environment and the peak memory of the measured commands."""

    folder: Path
    env: dict[str, str]
    peaks_kib: dict[str, int] = field(default_factory=dict)
    puts: int = 0

    def run(self, name: str, *words: str | Path) -> None:
        """Runs a command to its end, and records its peak memory. Raises RuntimeError if it fails."""
        process = subprocess.Popen(
            words, cwd=self.folder, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        assert process.stderr is not None
        output = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{words}: {output.decode(errors='replace')}")
        self.peaks_kib[name] = max(self.peaks_kib.get(name, 0), usage.ru_maxrss)

    def new_folder(self) -> str:
        """Returns the URL of an unused folder in S3."""
        self.puts += 1
        return f"s3://{BUCKET}/{self.puts}/"


def make_data(folder: Path, *, big_bytes: int) -> None:
    """Writes one file `big`, and a thousand files in `small/`."""
    generator = random.Random(1)
    block = generator.randbytes(1 << 24)
    with (folder / "big").open("wb") as file:
        for number in range(big_bytes // len(block)):
            file.write(number.to_bytes(4, "big") + block[4:])
    (folder / "small").mkdir()
    for number in range(SMALL_FILES):
        begin = number * 1000
        (folder / "small" / f"{number:05}.rec").write_bytes(block[begin : begin + SMALL_BYTES])


@contextmanager
def running_sink(folder: Path, *, latency_ms: int = 0) -> Iterator[str]:
    """Starts a sink that serves `big`, and yields its URL."""
    command = [sys.executable, "-m", "bench.s3.sink", str(folder / "big"), "--latency-ms", str(latency_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


def run(*, big_bytes: int = 1 << 30) -> str:
    """Runs the benchmark and returns its section of RESULTS.md."""
    with tempfile.TemporaryDirectory(prefix="bench-transfer-") as name:
        folder = Path(name)
        make_data(folder, big_bytes=big_bytes)
        (folder / "cluster.toml").write_text('name = "bench"\ncloud = "aws"\n[provision]\nregion = "us-east-1"\n')
        bench = Bench(folder=folder, env=_find_env(folder))
        with running_sink(folder) as url:
            bench.env |= dict.fromkeys(_ENDPOINT, url)
            tables = _measure(bench)
        with running_sink(folder, latency_ms=LATENCY_MS) as url:
            bench.env |= dict.fromkeys(_ENDPOINT, url)
            tables.append((f"{_SMALL} put, each answer {LATENCY_MS} ms late", _put_small(bench)))
        return _render(bench, tables)


def _find_env(folder: Path) -> dict[str, str]:
    # With PYTHONDONTWRITEBYTECODE, each start of Python would compile the program again.
    dropped = ("AWS_", "CLUSTER_", "PYTHONDONTWRITEBYTECODE")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    keys = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_REGION": "us-east-1"}
    return {**kept, **keys, "XDG_STATE_HOME": str(folder / "state")}


def _measure(bench: Bench) -> list[tuple[str, list[Timing]]]:
    put_big = interleave(
        {
            "cluster data put": lambda: bench.run("put 1 GiB", _CLUSTER, "data", "put", "big", bench.new_folder()),
            "s5cmd cp": lambda: bench.run("s5cmd", *_S5CMD, "cp", "big", bench.new_folder()),
        }
    )
    there = f"s3://{BUCKET}/there/"
    bench.run("once", *_S5CMD, "cp", "big", there)

    def forget() -> None:
        for path in (bench.folder / name for name in ("ours", "bare", "theirs")):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    get_big = interleave(
        {
            "cluster data get": lambda: bench.run("get 1 GiB", _CLUSTER, "data", "get", there + "big", "ours"),
            "obstore alone, not verified": lambda: bench.run(
                "obstore", sys.executable, "-c", OBSTORE_GET, BUCKET, "there/big", "bare"
            ),
            "s5cmd cp": lambda: bench.run("s5cmd", *_S5CMD, "cp", there + "big", "theirs"),
        },
        before=forget,
    )
    return [("1 GiB put", put_big), ("1 GiB got", get_big), (f"{_SMALL} put", _put_small(bench))]


def _put_small(bench: Bench) -> list[Timing]:
    return interleave(
        {
            "cluster data put": lambda: bench.run("put small", _CLUSTER, "data", "put", "small", bench.new_folder()),
            "s5cmd cp": lambda: bench.run("s5cmd", *_S5CMD, "cp", "small/", bench.new_folder()),
        }
    )


def _render(bench: Bench, tables: list[tuple[str, list[Timing]]]) -> str:
    rendered = [
        render_timings(title, timings, commands={}).strip().replace("## ", "### ", 1) for title, timings in tables
    ]
    rows = [
        f"| {name} | {kib / 1024:.0f} MiB |" for name, kib in bench.peaks_kib.items() if name.startswith(("put", "get"))
    ]
    memory = "\n".join(["| what | peak of memory |", "|---|---|", *rows])
    head = f"## Transfers to S3 and from S3\n\n{NOTES}"
    return "\n\n".join([head, *rendered, memory, "- all: `python -m bench transfer`"]) + "\n"
