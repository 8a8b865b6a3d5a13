"""Messages between the node programs of a job: one JSON object per line, over pipes, ssh and Unix sockets."""

import json
import os
import time
from typing import Any

from msgspec import Struct, to_builtins

from node.job.stacks import Location, Stack
from node.protocol import Container, JobHost, JobId, JobResult, JobSpec, JobState, LeftOnHost, NewFiles, Record
from node.samples import Sample

LONGEST_DELAY_S = 0.5
DELAY_STEP_S = 0.05
PidAndCommand = tuple[int, str]
"""A process: its pid and its command line."""


class RoleOrder(Struct, kw_only=True):
    """What one process of a job runs.

    address: the host's address, or None. launched: the variables by which the engine identifies the process. commands:
    run one after another, in `folder`. container: where they run; None for the host itself. python: that of the
    training environment.
    """

    role: str
    python: str = ""
    address: str | None = None
    launched: dict[str, str] = {}
    commands: tuple[tuple[str, ...], ...]
    folder: str
    env: dict[str, str]
    container: Container | None = None


# -- from the supervisor to an agent -----------------------------------------------------------------------------------


class AgentOrder(Struct, kw_only=True):
    """The first line for an agent: the part of a job that all of its processes on the host share.

    number: the index of the host, which names the agent's files. cwd, tree: the job's working folder on the host, and
    the files that are copied there, or None. volumes: folders where volumes are mounted, which must work. attempt: the
    number of the job's attempt, from 1. metadata: the address of EC2's metadata service, to ask it for spot notices;
    None: do not. authorities: see Order. patience_s: how long the supervisor may be silent; None: it runs on this host.
    """

    spec: JobSpec
    number: int
    host: str
    cwd: str
    tree: str | None = None
    volumes: tuple[str, ...] = ()
    attempt: int = 1
    metadata: str | None = None
    authorities: str | None = None
    patience_s: float | None = None


class Start(Struct, tag=True):
    """Start process `p`. shim: the shim that announced it. keep: do not end the processes that it leaves."""

    p: int
    order: RoleOrder
    shim: int | None = None
    keep: bool = False


class Refuse(Struct, tag=True):
    """Do not start the process of this shim."""

    shim: int


class Reach(Struct, tag=True):
    """Try these TCP ports, and answer with Blocked."""

    addresses: tuple[tuple[str, int], ...]


class Inspect(Struct, tag=True):
    """Answer with Used. hosts: the addresses of the job's hosts; what goes to others, or comes from them, counts."""

    p: int
    hosts: tuple[str, ...] = ()


class TakeStack(Struct, tag=True):
    """Answer with Placed. asked: the number of a user's request; 0: it is the supervisor's own look.

    whole: with the whole stacks of process `p`. native: look at the frames of C, too, for which the program is stopped
    for about 0.1 s. nccl: ask NCCL, too. recorder: read PyTorch's flight recorder, too.
    """

    p: int
    asked: int = 0
    whole: bool = False
    native: bool = False
    nccl: bool = False
    recorder: bool = False


class SaveCheckpoint(Struct, tag=True):
    """Have the processes save a checkpoint, because a node will be interrupted."""


class End(Struct, tag=True):
    """End all processes, report Closed, and end. copy_s: how long the rest of the job's files may be copied to S3.

    A second one shortens the copy.
    """

    copy_s: float | None = None


class Ping(Struct, tag=True):
    """Sent by both sides every few seconds: silence, or the end of the stream, means that the other side is lost.

    is_copying: the host still copies the job's files.
    """

    is_copying: bool = False


ToAgent = Start | Refuse | Reach | Inspect | TakeStack | SaveCheckpoint | End | Ping

# -- from an agent to the supervisor -----------------------------------------------------------------------------------


class Booted(Struct, tag=True):
    """The first message. boot: process_tree.boot of the host."""

    boot: str


class Announced(Struct, tag=True):
    """An engine's launcher on the host wants to start a process. launched: the variables that identify it."""

    shim: int
    launched: dict[str, str]


class Started(Struct, tag=True):
    """Process `p` runs."""

    p: int
    pid: int


class Output(Struct, tag=True):
    """Lines that process `p` has printed."""

    p: int
    lines: tuple[str, ...]


class Bar(Struct, tag=True):
    """The current progress bar of process `p`, in rows; "" if it is gone (output.py)."""

    p: int
    text: str


class Joined(Struct, tag=True):
    """What ps-lite has said of process `p`: its rank, or the address and port where it listens."""

    p: int
    rank: int | None = None
    bound: tuple[str, int] | None = None


class Exited(Struct, tag=True, kw_only=True):
    """Process `p` has ended, by signal `signal`, in command number `at`, -1 for the copy of the job's files before it.

    ended: the agent has ended it. why: the agent's own error.
    """

    p: int
    exit_code: int
    signal: int | None = None
    ended: bool = False
    at: int = 0
    why: str | None = None


class Clues(Struct, tag=True):
    """What the host knows about the first failure of a process there, since its agent began.

    kernel: lines of the kernel's log; () also if the user may not read it. oom_kills: how many processes the kernel's
    OOM killer has ended; None if unknown. shm_full: whether /dev/shm is full.
    """

    kernel: tuple[str, ...] = ()
    oom_kills: int | None = None
    shm_full: bool = False


class Used(Struct, tag=True):
    """The resources that the processes of process `p` have used so far, and those processes that are stopped.

    recorded: part of that was for its flight recorder, which the agent has asked for.
    """

    p: int
    cpu_s: float
    bytes: int
    stopped: tuple[PidAndCommand, ...]
    recorded: bool = False


class Placed(Struct, tag=True):
    """Where the Python program of process `p` is. asked: as in TakeStack."""

    p: int
    location: Location
    asked: int = 0


class Blocked(Struct, tag=True):
    """The ports that the host cannot reach, such as "10.0.0.5:34567"."""

    addresses: tuple[str, ...]


class VolumeDead(Struct, tag=True):
    """A volume does not work on the host."""

    text: str


class Notice(Struct, tag=True, kw_only=True, frozen=True):
    """EC2 will interrupt the host. action: terminate, stop or hibernate. at: seconds since the epoch, if known."""

    action: str
    at: float | None = None


class Reported(Struct, tag=True):
    """The numbers in the files of the job's program (notice.py): the last batch, or that of a complete checkpoint."""

    progress: dict[str, int] | None = None
    saved: dict[str, int] | None = None


class Sampled(Struct, tag=True):
    """What the host and its processes of the job use."""

    sample: Sample


class Closed(Struct, tag=True):
    """All processes have ended, except those in `left`. files: the job's new files on the host."""

    left: tuple[PidAndCommand, ...] = ()
    files: NewFiles | None = None


FromAgent = (
    Booted
    | Announced
    | Started
    | Output
    | Bar
    | Joined
    | Exited
    | Clues
    | Used
    | Blocked
    | Placed
    | VolumeDead
    | Notice
    | Reported
    | Sampled
    | Closed
    | Ping
)


class Remains(Struct, kw_only=True):
    """What `agent end` prints: the processes of the job that do not end. boot: process_tree.boot of the host, or ""."""

    left: LeftOnHost = []
    boot: str = ""


# -- from other programs on the head to the supervisor, over its socket ------------------------------------------------


class Watch(Struct, tag=True):
    """Answer with News until the job's end."""


class Stop(Struct, tag=True):
    """End the job."""


class Replace(Struct, tag=True):
    """Use these hosts in place of those for which the job waits. The answer is a Reply or a Refusal."""

    hosts: tuple[JobHost, ...]


class Message(Struct, tag=True):
    """Add a line to the job's log. The answer is a Reply."""

    text: str


class TakeStacks(Struct, tag=True):
    """Find where the job's processes are. The answer is Stacks or a Refusal.

    rank: of this one alone, with its whole stacks.
    """

    rank: int | None = None
    native: bool = False


class Launch(Struct, tag=True):
    """From launch.py: start a process on the host with this address. The answer is its exit code, as a line."""

    host: str
    launched: dict[str, str]


class RunProgram(Struct, tag=True):
    """From mpirun: run this shell text on the host with this address. The answer is the exit code, as a line."""

    host: str
    text: str


class NotStarted(Struct, tag=True):
    """From launch.py: a command that starts a process has failed."""


Request = Watch | Stop | Replace | Message | TakeStacks | Launch | RunProgram | NotStarted


class Reply(Struct, kw_only=True):
    """The supervisor's answer to `Replace` and `Message`. waiting_for: the nodes that the job still waits for."""

    waiting_for: tuple[str, ...] = ()


class Refusal(Struct):
    """The supervisor's answer to a request that it does not carry out. error: why."""

    error: str


class Submitted(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """jobs.py's answer to an order. refused: the running job because of which this one is refused.

    unrunnable: why the batch scheduler's queue does not allow it. script: the scheduler's, of an order that is only
    checked.
    """

    job: JobId | None = None
    state: JobState | None = None
    refused: Record | None = None
    unrunnable: str | None = None
    script: str | None = None
    error: str | None = None


class StopAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """jobs.py's answer to `stop`. already: the job had ended before.

    by_head: the head has stopped it, and its log says so; the user's machine sets this.
    """

    result: JobResult
    already: bool = False
    by_head: bool = True


class Stacks(Struct, kw_only=True):
    """The supervisor's answer to `TakeStacks`."""

    stacks: tuple[Stack, ...]


class News(Struct, kw_only=True):
    """The supervisor's messages to those that `Watch`.

    bars: all current progress bars, by the process's number, after a change, and when each was printed, about, in
    seconds since the epoch.
    """

    bars: dict[int, tuple[str, float]]


def encode(message: Any) -> bytes:
    """Returns a message as one line of ASCII, which preserves invalid UTF-8, as in file names."""
    return json.dumps(to_builtins(message)).encode("ascii") + b"\n"


class LineBuffer:
    """Splits a stream of bytes into lines. A line over `limit` bytes is cut there."""

    def __init__(self, limit: int = 1 << 16) -> None:
        self._rest = b""
        self._limit = limit

    def feed(self, data: bytes) -> list[bytes]:
        """Adds bytes, and returns the lines that are now complete, without newlines."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        while len(self._rest) > self._limit:
            lines.append(self._rest[: self._limit])
            self._rest = self._rest[self._limit :]
        return lines

    def flush(self) -> list[bytes]:
        """Returns the rest at the end of the stream, as a list of at most one line."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


class Pace:
    """Decides how long to collect output before it is passed on.

    A line after a pause is passed on at once. Lines in quick succession are collected into fewer, larger pieces: each
    piece wakes every program on its way to the user, beside the processes that train.
    """

    def __init__(self) -> None:
        self._came_at = self._delay_s = self._until = 0.0

    def note(self) -> None:
        """Records that output has arrived."""
        now = time.monotonic()
        is_stream = now < self._came_at + 2 * LONGEST_DELAY_S
        self._delay_s = min(self._delay_s + DELAY_STEP_S, LONGEST_DELAY_S) if is_stream else 0.0
        self._came_at, self._until = now, now + self._delay_s

    @property
    def delay_s(self) -> float:
        """The remaining time to wait."""
        return max(0.0, self._until - time.monotonic())


def write_all(descriptor: int, data: bytes) -> None:
    """Writes all bytes to a file descriptor."""
    while data:
        data = data[os.write(descriptor, data) :]


def read_line(descriptor: int) -> tuple[bytes, bytes]:
    """Reads the first line. Returns it, and the bytes received after it. Raises ConnectionError, OSError."""
    data = b""
    while b"\n" not in data:
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            raise ConnectionError("no order")
        data += piece
    line, _, rest = data.partition(b"\n")
    return line, rest
