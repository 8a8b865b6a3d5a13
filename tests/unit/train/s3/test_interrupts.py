"""Ctrl-C while S3 does not answer: the real command ends without a traceback."""

import math
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from project import REPOSITORY
from train.s3.content import COMPARED_AT_ONCE
from train.s3.transfer import TIERS
from waits import until

sys.path.append(str(REPOSITORY))  # the benchmarks are not installed
from bench.s3.objects import World, store_file
from bench.s3.sink import Connection

FILES = 1000
LATENCY_S = 0.02
ANSWERS = 20
"""S3 answers this many requests and then no more."""
COMMAND = """
import sys
from cluster.main import main
sys.argv[0] = "cluster"
main()
"""


class Sink:
    """A slow S3 with the files of `local`. folder: where commands run; it has the folders `local` and `changed`.

    Both have many small files, with the same names and sizes but different bytes.
    """

    def __init__(self, folder: Path) -> None:
        self.connections = 0
        self._folder = folder
        self._world = World(answer=store_file(folder / "local" / "0"))
        self._changed = threading.Condition()
        self._answers = math.inf
        self._held = 0

    @contextmanager
    def serve(self) -> Iterator[None]:
        with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
            self._port = listener.getsockname()[1]
            thread = threading.Thread(target=self._accept, args=(listener,))
            thread.start()
            try:
                yield
            finally:
                listener.shutdown(socket.SHUT_RDWR)
                thread.join()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:  # shut down
                return
            threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with self._changed:
            self.connections += 1
        try:
            HeldConnection(client, self._world, self.hold).serve(None)
        finally:
            with self._changed:
                self.connections -= 1

    def allow(self, answers: float) -> None:
        """Allows this many more answers about objects, and then none."""
        with self._changed:
            self._answers = answers
            self._changed.notify_all()

    def hold(self) -> None:
        """Waits until an answer is allowed."""
        with self._changed:
            self._held += 1
            self._changed.wait_for(lambda: self._answers > 0)
            self._held -= 1
            self._answers -= 1

    @property
    def held(self) -> int:
        with self._changed:
            return self._held

    def start(self, *words: str) -> subprocess.Popen[str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        env |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "XDG_STATE_HOME": str(self._folder / "state")}
        env |= {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._port}", "PYTHONPATH": str(REPOSITORY)}
        return subprocess.Popen(
            [sys.executable, "-c", COMMAND, "data", *words],
            cwd=self._folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


class HeldConnection(Connection):
    """hold: called before an answer about an object."""

    def __init__(self, client: socket.socket, world: World, hold: Callable[[], None]) -> None:
        super().__init__(client, world, latency_s=LATENCY_S)
        self._hold = hold

    def _answer(self, head: str) -> None:
        if head.startswith(("PUT ", "HEAD ")):
            self._hold()
        super()._answer(head)


@pytest.fixture(scope="module")
def sink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sink]:
    folder = tmp_path_factory.mktemp("interrupts")
    for name, first in (("local", 1000), ("changed", 2000)):
        (folder / name).mkdir()
        for number in range(FILES):
            (folder / name / f"{number}").write_bytes(b"%d" % (first + number))
    (folder / "cluster.toml").write_text('name = "c"\ncloud = "aws"\n[provision]\nregion = "us-east-1"\n')
    sink = Sink(folder)
    with sink.serve():
        with sink.start("put", "local/", "s3://bench/there/") as put:
            said = put.communicate(timeout=120)
            assert put.returncode == 0, said
        yield sink


@pytest.mark.parametrize(
    ("words", "threads"),
    [
        (("put", "local/", "s3://bench/new/"), TIERS[0].files_at_once),
        (("put", "changed/", "s3://bench/there/"), COMPARED_AT_ONCE),
        (("verify", "s3://bench/there/", "changed/"), COMPARED_AT_ONCE),
    ],
    ids=["put", "put what is there", "verify"],
)
def test_ctrl_c(sink: Sink, request: pytest.FixtureRequest, words: tuple[str, ...], threads: int) -> None:
    """The interrupt arrives in the middle, when S3 no longer answers. threads: how many wait for answers then."""
    request.addfinalizer(lambda: sink.allow(math.inf))
    until(lambda: sink.connections == 0)
    sink.allow(ANSWERS)
    with sink.start(*words) as process:
        try:
            until(lambda: sink.held >= threads and count_threads(process) > threads)
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=120)
        finally:
            process.kill()
    hint = f"  try: to copy what is missing, run again: cluster data {' '.join(words)}\n" if words[0] == "put" else ""
    assert (process.returncode, *said) == (130, "", f"\nerror: interrupted\n{hint}")


def count_threads(process: subprocess.Popen[str]) -> int:
    return len(os.listdir(f"/proc/{process.pid}/task"))
