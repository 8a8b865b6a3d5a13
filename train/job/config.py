"""[train], [data] and [queue] of cluster.toml: what a job runs, reads, and requests from a batch scheduler."""

import posixpath
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Annotated, Literal

from msgspec import Meta, field

from bootstrap.config import check_command
from foundation.durations import parse_duration, render_exact
from foundation.settings import HIDDEN, Settings, Shape, finite
from node.protocol import ENV_NAME_PATTERN, EndsWith, KvStore, OnNodeLoss
from train.engines import check_launcher
from train.job.selection import check_nodes
from train.s3.url import check_place, is_s3

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
FolderUrl = Annotated[str, check_place]
HOST_PATTERN = r"([A-Za-z_][A-Za-z0-9_.-]*@)?[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]{1,5})?"
# An option's name; "" for none.
OPTION_PATTERN = r"auto|(--?[A-Za-z][A-Za-z0-9_-]*)?"
# A folder on the nodes; "" for none. Not /: files copied there would overwrite the system's.
FOLDER_PATTERN = r"((/|~/)[^/\x00][^\x00]*)?"
# MXNet's readers give ; # and ? a special meaning.
CACHE_PATTERN = r"auto|(/|~/)[A-Za-z0-9_.][A-Za-z0-9_./ +-]*"
SHORTEST_WALLTIME_S = 60  # schedulers count in minutes
QUEUE_PATTERN = r"([A-Za-z0-9_][A-Za-z0-9_.@:+-]*)?"


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


class TrainConfig(Settings, frozen=True, kw_only=True):
    """What `cluster train` runs by default; its command line overrides it."""

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
            description='letters, digits, ".", "_" and "-"; the name of jobs, or "auto": that of the script or command'
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
            description="a list of nodes by name or private address, and of your own hosts as "
            '"[user@]host[:port]", in this order, repeated for more processes; []: all nodes'
        ),
    ] = ()
    processes: Annotated[
        ProcessCount,
        Meta(description='the number of processes per node for torchrun, env and mpi; "auto": its GPUs, or 1'),
    ] = "auto"
    nodes: Annotated[
        int | str,
        check_nodes,
        Meta(
            description='which nodes a job uses: "current", all that exist; "requested", [provision] nodes or none; '
            '"spot" or "on-demand"; a number; or a minimum: "2.."'
        ),
    ] = "current"
    launcher: Annotated[
        str,
        check_launcher,
        Meta(
            description='what starts the processes: "ssh", "local" (launch.py), "mpi", "torchrun", "env" (nothing: '
            'each gets RANK and WORLD_SIZE); "auto": by [bootstrap] framework'
        ),
    ] = "auto"
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

    def conflicts(self, said: AbstractSet[str]) -> Iterator[str]:  # noqa: ARG002 - includes defaults
        """Yields a message for each contradiction between settings."""
        if self.hosts and self.nodes != "current":
            yield "hosts and nodes both select the nodes of a job: set one of them"
        if self.workers != "auto" and self.processes != "auto":
            yield "workers is the number of processes in all, processes the number per node: set one of them"

    @property
    def subfolder(self) -> str:
        """The folder where processes run, below that of cluster.toml; "" for that folder itself."""
        return "" if self.cwd == "auto" else posixpath.normpath(self.cwd).removeprefix(".")

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


class JobFile(TrainConfig, frozen=True, kw_only=True):
    """A job file: the keys of [train], and a command that replaces the script."""

    command: Annotated[
        tuple[Word, ...], Meta(description="a list of words: a command to run instead of script, word for word")
    ] = ()

    def conflicts(self, said: AbstractSet[str]) -> Iterator[str]:
        """Yields a message for each contradiction between settings."""
        yield from super().conflicts(said)
        if self.command and not said.isdisjoint({"script", "args"}):
            yield "command replaces script and args: set one or the other"


def _check_walltime(value: int | str) -> int | str:
    if value != "auto" and (parse_duration(value) or 0) < SHORTEST_WALLTIME_S:
        raise ValueError("not from 1 minute to 30 days")
    return value


def _check_option(option: str) -> str:
    if not option.startswith("-"):
        raise ValueError('must start with "-"')
    return option


class QueueConfig(Settings, frozen=True, kw_only=True):
    """What a job requests from a batch scheduler."""

    name: Annotated[
        str,
        Shape(QUEUE_PATTERN),
        Meta(description='the queue (Slurm: partition) that jobs are submitted to; "": the scheduler\'s default'),
    ] = ""
    walltime: Annotated[
        int | str,
        _check_walltime,
        Meta(
            description='how long the scheduler lets a job run, from 1 minute to 30 days: "90m", "2h", "1d" or '
            'seconds; "auto": [train] max_duration, or the queue\'s default'
        ),
    ] = "auto"
    account: Annotated[
        str, Shape(QUEUE_PATTERN), Meta(description='the account that the scheduler charges; "": your default')
    ] = ""
    slots_per_node: Annotated[
        ProcessCount,
        Meta(description='slots to reserve on each node, 1 to 1000; "auto": whole nodes (PBS: 1)'),
    ] = "auto"
    options: Annotated[
        tuple[Annotated[str, Shape(r"[^\x00\r\n]+", "text in quotes, in one line"), _check_option], ...],
        Meta(description='a list of more options for the submission script: "--constraint=a100", "-l gpu=1"'),
    ] = ()

    def find_walltime_s(self, max_duration_s: int | None) -> int | None:
        """The walltime in seconds; None: the queue's default. max_duration_s: [train] max_duration, if there is one.

        A walltime that follows from max_duration is rounded up to whole minutes.
        """
        if self.walltime != "auto":
            return parse_duration(self.walltime)
        return None if max_duration_s is None else (max_duration_s + 59) // 60 * 60

    def find_conflict(self, max_duration_s: int | None) -> str | None:
        """The error for a job that may run longer than the scheduler allows, or None."""
        walltime_s = self.find_walltime_s(max_duration_s)
        if max_duration_s is None or walltime_s is None or max_duration_s <= walltime_s:
            return None
        return (
            f"[train] max_duration is {render_exact(max_duration_s)}, but [queue] walltime is "
            f"{render_exact(walltime_s)}: the scheduler would end the job first"
        )


class DataConfig(Settings, frozen=True, kw_only=True):
    """Where jobs read records and write results."""

    url: Annotated[
        FolderUrl | None,
        Meta(
            description='the folder that training reads: "s3://BUCKET/FOLDER/", or one on a volume, "/shared/data": '
            "$CLUSTER_DATA_URL in the script"
        ),
    ] = None
    results: Annotated[
        FolderUrl | None,
        Meta(
            description='the folder that jobs write to: "s3://BUCKET/FOLDER/", or one on a volume, "/shared/results": '
            "$CLUSTER_RESULTS_URL in the script"
        ),
    ] = None
    mode: Annotated[
        Literal["auto", "native", "stage"],
        Meta(
            description='how MXNet reads and writes s3://: "native": itself; "stage": through local files; "auto": '
            "itself where it can"
        ),
    ] = "auto"
    cache_gib: Annotated[
        Literal["auto"] | Annotated[float, finite, Meta(gt=0, le=1_000_000)],
        Meta(description='for "stage": the most GiB to keep on a node; "auto": as many as fit on its disk'),
    ] = "auto"
    cache_dir: Annotated[
        str,
        Shape(CACHE_PATTERN),
        Meta(
            description='for "stage": the folder on a node for cached data: "/data/cache", "~/cache"; "auto": on its '
            "fastest disk"
        ),
    ] = "auto"

    @property
    def s3_url(self) -> str | None:
        """url, if it is in S3; otherwise None."""
        return self.url if self.url is not None and is_s3(self.url) else None

    @property
    def s3_results(self) -> str | None:
        """results, if it is in S3; otherwise None."""
        return self.results if self.results is not None and is_s3(self.results) else None

    def find_conflicts(self, volumes: Mapping[str, bool]) -> Iterator[str]:
        """Yields a message for each path that is on no volume, or would be written to a read-only one. Pure.

        volumes: whether each volume is read only, by its mount.
        """
        for key, path in (("url", self.url), ("results", self.results)):
            if path is None or is_s3(path):
                continue
            mount = next((mount for mount in volumes if f"{path}/".startswith(f"{mount}/")), None)
            if mount is None:
                yield (
                    f'data.{key} = "{path}": not on a volume: it must be below the mount of one of [[volumes]], so '
                    "that every node has it"
                )
            elif key == "results" and volumes[mount]:
                yield f'data.results = "{path}": the volume {mount} is read_only'
