"""Ctrl-C while S3 keeps a command waiting: the real command, which ends promptly, and without a traceback."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from project import REPOSITORY

FILES = 1000
LANES = 4
"""Connections that there are at least, where many files are moved or asked about; a listing has one."""
PROMPTLY_S = 8.0
"""It leaves its threads two seconds, and this machine may be busy."""
COMMAND = """
import sys
from cluster.main import main
from train.s3 import lanes, small
sys.argv[0] = "cluster"
if THREADS:
    lanes.HELD_UP, lanes._JUDGE_EVERY_S = -1.0, 0.0
main()
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sink:
    """A slow S3, in which is what `local` holds. folder: where commands run, with `local` and `changed`.

    These hold many small files, of the same names and sizes, and other bytes.
    """

    process: subprocess.Popen[str]
    folder: Path
    env: dict[str, str]

    def start(self, *words: str, threads: bool = False) -> subprocess.Popen[str]:
        """threads: what the lanes leave to them is nearly everything."""
        program = COMMAND.replace("THREADS", str(threads))
        return subprocess.Popen(
            [sys.executable, "-c", program, "data", *words],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @property
    def connections(self) -> int:
        found = 0
        for entry in Path(f"/proc/{self.process.pid}/fd").iterdir():
            try:
                found += os.readlink(entry).startswith("socket:")
            except FileNotFoundError:  # closed meanwhile
                continue
        return found - 1  # it listens, too


@pytest.fixture(scope="module")
def sink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sink]:
    folder = tmp_path_factory.mktemp("interrupts")
    for name, first in (("local", 1000), ("changed", 2000)):
        (folder / name).mkdir()
        for number in range(FILES):
            (folder / name / f"{number}").write_bytes(b"%d" % (first + number))
    (folder / "cluster.toml").write_text('name = "c"\ncloud = "aws"\n[provision]\nregion = "us-east-1"\n')
    with serve(folder / "local" / "0", latency_ms=200) as process:
        assert process.stdout is not None
        env = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        env |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "XDG_STATE_HOME": str(folder / "state")}
        env |= {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{int(process.stdout.readline())}", "PYTHONPATH": str(REPOSITORY)}
        sink = Sink(process=process, folder=folder, env=env)
        with sink.start("put", "local/", "s3://bench/there/") as put:
            said = put.communicate(timeout=60)
            assert put.returncode == 0, said
        yield sink


@contextmanager
def serve(file: Path, *, latency_ms: int) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-m", "bench.s3_sink", str(file), "--latency-ms", str(latency_ms)]
    with subprocess.Popen(words, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


@pytest.mark.parametrize(
    ("words", "threads"),
    [
        (("put", "local/", "s3://bench/lanes/"), False),
        (("put", "local/", "s3://bench/threads/"), True),
        (("put", "changed/", "s3://bench/there/"), False),
        (("verify", "s3://bench/there/", "changed/"), False),
    ],
    ids=["lanes", "threads", "put what is there", "verify"],
)
def test_ctrl_c(sink: Sink, words: tuple[str, ...], *, threads: bool) -> None:
    wait_until(lambda: sink.connections == 0)
    with sink.start(*words, threads=threads) as process:
        try:
            wait_until(lambda: sink.connections >= LANES)
            time.sleep(0.5)  # to be well in the middle
            assert process.poll() is None
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, *said) == (130, "", "\nerror: interrupted\n")
    assert time.monotonic() - began < PROMPTLY_S


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.01)
