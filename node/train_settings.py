"""[train] of cluster.toml: what a job runs. The nodes get it as it is (protocol.JobSpec)."""

import posixpath
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Annotated, Literal

from msgspec import Meta, field

from foundation.durations import parse_duration
from foundation.setting_types import HIDDEN, Settings, Shape, check_command, finite

KvStore = Literal["local", "device", "dist_sync", "dist_async", "dist_device_sync", "dist_sync_device", "none"]
OnNodeLoss = Literal["requeue", "fail"]
OnStall = Literal["report", "end", "requeue"]
EndsWith = Literal["all", "rank 0"]
ENV_NAME_PATTERN = r"[A-Za-z_][A-Za-z0-9_]*"
"""The whole name of an environment variable."""
ENVIRONMENTS = ("env", "env_server", "env_worker")
"""The keys of [train] with environment variables, whose values may be secrets."""
GcType = Literal["none", "2bit"]
# Anything that a command line or an environment can hold: no NUL.
Word = Annotated[str, Shape(r"[^\x00]*", "text in quotes, without NUL")]
Variables = dict[
    Annotated[str, Shape(ENV_NAME_PATTERN, "a name of letters A to Z, digits and _, no digit first")],
    Annotated[Word, HIDDEN],
]
ProcessCount = Literal["auto"] | Annotated[int, Meta(ge=1, le=1000)]
# Patterns match the whole value.
NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
HOST_PATTERN = r"([A-Za-z_][A-Za-z0-9_.-]*@)?[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]{1,5})?"
# An option's name; "" for none.
OPTION_PATTERN = r"auto|(--?[A-Za-z][A-Za-z0-9_-]*)?"
# A folder on the nodes; "" for none. Not /: files copied there would overwrite the system's.
FOLDER_PATTERN = r"((/|~/)[^/\x00][^\x00]*)?"


def _check_duration(value: int | str) -> int | str:
    parse_duration(value)
    return value


def _check_grace(value: int | str) -> int | str:
    if value == "none" or (isinstance(value, str) and value.isdecimal()):
        raise ValueError('must be a time such as "90s" or "2m"')
    return _check_duration(value)


def _check_stall_timeout(value: int | str) -> int | str:
    return value if value == "auto" else _check_duration(value)


def _check_gpus(gpus: tuple[int, ...]) -> tuple[int, ...]:
    if not gpus or len(set(gpus)) < len(gpus):
        raise ValueError("an empty list, or the same GPU twice")
    return gpus


def _check_folder(folder: str) -> str:
    if not folder or "\0" in folder or folder.startswith(("/", "~")) or ".." in folder.split("/"):
        raise ValueError('must be a folder below that of cluster.toml, such as "mnist"')
    return folder


class TrainSettings(Settings, frozen=True, kw_only=True):
    """The keys of [train]. train/job/config.py checks those whose values only this machine knows."""

    script: Annotated[
        str,
        Shape(r"[^\x00]+", "text in quotes, without NUL and not empty"),
        Meta(description="a script that ships with this project (train_mnist.py), or the path of your own"),
    ] = "train_mnist.py"
    args: Annotated[
        tuple[Word, ...], Meta(description="a list of words: arguments of the script, passed on word for word")
    ] = ()
    name: Annotated[
        str,
        Shape(NAME_PATTERN),
        Meta(
            description='the name of jobs: letters, digits, ".", "_" and "-"; or "auto": that of the script or command'
        ),
    ] = "auto"
    kv_store: Annotated[
        KvStore,
        Meta(
            description="how workers exchange gradients with MXNet; passed to the script by kv_store_option; "
            '"none": the program exchanges them itself'
        ),
    ] = "dist_sync"
    kv_store_option: Annotated[
        str,
        Shape(OPTION_PATTERN),
        Meta(
            description='the option that passes kv_store to your own script: "--kv-store", "--kvstore"; "auto": the '
            'one that its text names; "": none'
        ),
    ] = "auto"
    gc_type: Annotated[
        GcType, Meta(description='"2bit": compress gradients on the network; passed to the script as --gc-type')
    ] = "none"
    gc_threshold: Annotated[
        float, finite, Meta(gt=0, description="a number above 0, passed to the script as --gc-threshold")
    ] = 0.5
    p3: Annotated[bool, Meta(description="true: send parameters by priority (launch.py --p3; MXNet 1.7 and later)")] = (
        False
    )
    workers: Annotated[
        ProcessCount,
        Meta(description='the number of worker processes, 1 to 1000; "auto": one per node, or `processes`'),
    ] = "auto"
    servers: Annotated[
        ProcessCount,
        Meta(description='the number of parameter servers, 1 to 1000; "auto": one per worker where cores allow'),
    ] = "auto"
    hosts: Annotated[
        tuple[Annotated[str, Shape(HOST_PATTERN)], ...],
        Meta(
            description="a list of nodes by name or private address, in this order, repeated for more processes; []: "
            "all nodes"
        ),
    ] = ()
    processes: Annotated[
        ProcessCount,
        Meta(description='the number of processes per node for torchrun, env and mpi; "auto": its GPUs, or 1'),
    ] = "auto"
    nodes: int | str = "current"  # TrainConfig checks and describes it, and launcher
    launcher: str = "auto"
    gpus: Annotated[
        Literal["auto", "none"] | Annotated[tuple[Annotated[int, Meta(ge=0, le=63)], ...], _check_gpus],
        Meta(
            description='the GPUs of each worker: a list of numbers, [0, 1]; "auto": those of its node, shared '
            'equally among the workers there; "none"'
        ),
    ] = "auto"
    env: Annotated[
        Variables,
        Meta(description='environment variables of all processes of the job, such as { OMP_NUM_THREADS = "4" }'),
    ] = field(default_factory=dict)
    env_server: Annotated[
        Variables, Meta(description='environment variables of servers only, such as { OMP_NUM_THREADS = "1" }')
    ] = field(default_factory=dict)
    env_worker: Annotated[
        Variables, Meta(description='environment variables of workers only, such as { OMP_NUM_THREADS = "4" }')
    ] = field(default_factory=dict)
    sync_dst_dir: Annotated[
        str,
        Shape(FOLDER_PATTERN),
        Meta(
            description='a folder on the nodes where your files are copied and the job runs: "/data/job", "~/job"; '
            '"": no copy'
        ),
    ] = ""
    cwd: Annotated[
        str,
        _check_folder,
        Meta(
            description='the folder where processes run, below that of cluster.toml: "mnist"; ".": that folder itself; '
            '"auto": the one in which the command is typed'
        ),
    ] = "auto"
    setup: Annotated[
        tuple[Annotated[str, check_command], ...],
        Meta(description="a list of commands that every node runs before each job"),
    ] = ()
    open_files: Annotated[
        Literal["auto"] | Annotated[int, Meta(ge=256, le=1_000_000_000)],
        Meta(description='the open-file limit of a process, at least 256; "auto": the node\'s maximum'),
    ] = "auto"
    start_timeout_s: Annotated[
        int, Meta(ge=5, le=3600, description="seconds within which all processes must start, 5 to 3600")
    ] = 60
    silence_timeout_s: Annotated[
        int,
        Meta(ge=5, le=3600, description="seconds without a sign of life after which a node is lost, 5 to 3600"),
    ] = 15
    max_duration: Annotated[
        int | str,
        _check_duration,
        Meta(description='how long a job may run: "90m", "2h", "1d" or seconds, at most 30 days; "none": no limit'),
    ] = "none"
    stall_timeout: Annotated[
        int | str,
        _check_stall_timeout,
        Meta(
            description='ends a job without progress after this time: "10m", "1h" or seconds; "auto": only warns; '
            '"none": no check'
        ),
    ] = "auto"
    on_stall: Annotated[
        OnStall,
        Meta(
            description='after stall_timeout, if that is a time: "end": the job fails; "requeue": it starts again from '
            'its last checkpoint, within restarts; "report": it goes on'
        ),
    ] = "end"
    queue: Annotated[bool, Meta(description="true: wait until the running job ends")] = False
    ends_with: Annotated[
        EndsWith,
        Meta(
            description='when a job is done: "all": once all workers are; "rank 0": once rank 0 is, which ends the '
            "others: for Ray, Dask and parameter servers"
        ),
    ] = "all"
    on_node_loss: Annotated[
        OnNodeLoss,
        Meta(
            description='when a node is interrupted or lost: "requeue": replace it, and start the job again from its '
            'last checkpoint; "fail": the job fails'
        ),
    ] = "requeue"
    restarts: Annotated[
        int, Meta(ge=0, le=100, description="how often a job may start again after it has lost nodes, 0 to 100")
    ] = 3
    restarts_on_error: Annotated[
        int, Meta(ge=0, le=100, description="how often a job may start again after it has failed by itself, 0 to 100")
    ] = 0
    checkpoint_grace: Annotated[
        int | str,
        _check_grace,
        Meta(description='how long a job may take to save a checkpoint after a spot notice: "90s", "2m" or seconds'),
    ] = "90s"

    def conflicts(self, given: AbstractSet[str]) -> Iterator[str]:  # noqa: ARG002 - includes defaults
        """Yields a message for each contradiction between settings."""
        if self.hosts and self.nodes != "current":
            yield "hosts and nodes both select the nodes of a job: set one of them"
        if self.workers != "auto" and self.processes != "auto":
            yield "workers is the number of processes in all, processes the number per node: set one of them"
        if self.on_stall == "requeue" and isinstance(self.stall_timeout_s, str):
            yield 'on_stall = "requeue" needs a time in stall_timeout, such as "10m"'

    @property
    def subfolder(self) -> str:
        """The folder where processes run, below that of cluster.toml; "" for that folder itself."""
        folder = posixpath.normpath(self.cwd)
        return "" if folder in ("auto", ".") else folder

    @property
    def max_duration_s(self) -> int | None:
        """max_duration in seconds; None: no limit."""
        return parse_duration(self.max_duration)

    @property
    def stall_timeout_s(self) -> int | Literal["auto", "none"]:
        """stall_timeout; a time is in seconds."""
        if self.stall_timeout == "auto":
            return "auto"
        return parse_duration(self.stall_timeout) or "none"

    @property
    def checkpoint_grace_s(self) -> int:
        """checkpoint_grace in seconds."""
        return parse_duration(self.checkpoint_grace) or 0
