"""[train] and [data] of cluster.toml: what a job runs, and what it reads."""

import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Annotated, Literal

from msgspec import Meta, field

from bootstrap.config import check_command
from foundation.settings import HIDDEN, Settings, Shape, finite
from train.job.protocol import ENV_NAME_PATTERN, KvStore, Launcher
from train.s3.url import check_folder

GcType = Literal["none", "2bit"]
# What can stand on a command line or in an environment: all but NUL.
Word = Annotated[str, Shape(r"[^\x00]*", "text in quotes, without NUL")]
Variables = dict[
    Annotated[str, Shape(ENV_NAME_PATTERN, "a name of letters A to Z, digits and _, no digit first")],
    Annotated[Word, HIDDEN],
]
ProcessCount = Literal["auto"] | Annotated[int, Meta(ge=1, le=1000)]
# All patterns are to be matched in full.
NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
FolderUrl = Annotated[str, check_folder]
HOST_PATTERN = r"([A-Za-z_][A-Za-z0-9_.-]*@)?[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]{1,5})?"
# An option's name; "" is none.
OPTION_PATTERN = r"auto|(--?[A-Za-z][A-Za-z0-9_-]*)?"
# A folder of the nodes; "" is none. Not /: what is copied there would lie over the system.
FOLDER_PATTERN = r"((/|~/)[^/\x00][^\x00]*)?"
# MXNet's readers take ; # and ? in a path for something else.
CACHE_PATTERN = r"auto|(/|~/)[A-Za-z0-9_.][A-Za-z0-9_./ +-]*"
_DURATION = r"([1-9][0-9]*)(s|m|h|d)"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MAX_DURATION_S = 30 * 86400


def parse_duration(value: int | str) -> int | None:
    """Seconds of "90m", "2h", "1d", "45s" or a number; None for "none". Pure. Raises ValueError."""
    if value == "none":
        return None
    if isinstance(value, str):
        found = re.fullmatch(_DURATION, value)
        if found is None:
            raise ValueError('not a length of time such as "90m", "2h", "1d" or seconds')
        value = int(found[1]) * _UNITS[found[2]]
    if not 1 <= value <= MAX_DURATION_S:
        raise ValueError("not from 1 second to 30 days")
    return value


def _check_duration(value: int | str) -> int | str:
    parse_duration(value)
    return value


def _check_stall_timeout(value: int | str) -> int | str:
    return value if value == "auto" else _check_duration(value)


def _check_gpus(gpus: tuple[int, ...]) -> tuple[int, ...]:
    if not gpus or len(set(gpus)) < len(gpus):
        raise ValueError("the same GPU twice, or none at all")
    return gpus


class TrainConfig(Settings, frozen=True, kw_only=True):
    """What `cluster train` runs when its command line does not say otherwise."""

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
            description='what jobs are called; "auto": after the script or the command; letters, digits, ".", "_" '
            'and "-"'
        ),
    ] = "auto"
    kv_store: Annotated[
        KvStore, Meta(description="how gradients are exchanged; given to the script as kv_store_option says")
    ] = "dist_sync"
    kv_store_option: Annotated[
        str,
        Shape(OPTION_PATTERN),
        Meta(
            description='the option that your own script gets kv_store by: "--kv-store", "--kvstore"; "auto": the one '
            'of these that its text names; "": it gets none'
        ),
    ] = "auto"
    gc_type: Annotated[
        GcType, Meta(description='"2bit": gradients are compressed on their way; given to the script as --gc-type')
    ] = "none"
    gc_threshold: Annotated[
        float, finite, Meta(gt=0, description="a number above 0: --gc-threshold for the script")
    ] = 0.5
    p3: Annotated[
        bool, Meta(description="true: send parameters by their priority (launch.py --p3; MXNet 1.7 and later)")
    ] = False
    workers: Annotated[
        ProcessCount, Meta(description='how many worker processes, 1 to 1000; "auto": one for each node')
    ] = "auto"
    servers: Annotated[
        ProcessCount,
        Meta(description='how many parameter server processes, 1 to 1000; "auto": as workers where cores allow'),
    ] = "auto"
    hosts: Annotated[
        tuple[Annotated[str, Shape(HOST_PATTERN)], ...],
        Meta(
            description="a list of the nodes to run on, by name or private address, and of hosts of your own, as "
            '"[user@]host[:port]", in this order; one may stand there several times; []: all nodes'
        ),
    ] = ()
    launcher: Annotated[
        Launcher,
        Meta(description='how launch.py starts the processes: "ssh"; "mpi", with Open MPI; "local": all on the head'),
    ] = "ssh"
    gpus: Annotated[
        Literal["auto", "none"] | Annotated[tuple[Annotated[int, Meta(ge=0, le=63)], ...], _check_gpus],
        Meta(
            description='the GPUs of each worker: a list of numbers, [0, 1]; "auto": all of its node, shared out '
            'among its workers; "none"'
        ),
    ] = "auto"
    env: Annotated[
        Variables,
        Meta(description='environment variables of every process of the job, such as { OMP_NUM_THREADS = "4" }'),
    ] = field(default_factory=dict)
    env_server: Annotated[
        Variables, Meta(description='environment variables of its servers alone, such as { OMP_NUM_THREADS = "1" }')
    ] = field(default_factory=dict)
    env_worker: Annotated[
        Variables, Meta(description='environment variables of its workers alone, such as { OMP_NUM_THREADS = "4" }')
    ] = field(default_factory=dict)
    sync_dst_dir: Annotated[
        str,
        Shape(FOLDER_PATTERN),
        Meta(
            description='a folder of the nodes that your files are copied to, and the job run in: "/data/job", '
            '"~/job"; "": they stay where they are'
        ),
    ] = ""
    setup: Annotated[
        tuple[Annotated[str, check_command], ...],
        Meta(description="a list of commands that every node runs before the processes of each job"),
    ] = ()
    open_files: Annotated[
        Literal["auto"] | Annotated[int, Meta(ge=256, le=1_000_000_000)],
        Meta(description='how many files a process may have open, 256 at least; "auto": as many as its node allows'),
    ] = "auto"
    start_timeout_s: Annotated[
        int, Meta(ge=5, le=3600, description="seconds that all processes of a job may take to start, 5 to 3600")
    ] = 60
    silence_timeout_s: Annotated[
        int,
        Meta(ge=5, le=3600, description="seconds that nothing may be heard of a process, or of its node, 5 to 3600"),
    ] = 15
    max_duration: Annotated[
        int | str,
        _check_duration,
        Meta(description='how long a job may run: "90m", "2h", "1d" or seconds, 30 days at most; "none": for ever'),
    ] = "none"
    stall_timeout: Annotated[
        int | str,
        _check_stall_timeout,
        Meta(
            description='how long a job may make no progress before it is ended: "10m", "1h" or seconds; "auto": it is '
            'not ended, but you are told; "none": nobody looks'
        ),
    ] = "auto"
    queue: Annotated[bool, Meta(description="true: wait for the job that runs, where there is one")] = False

    @property
    def max_duration_s(self) -> int | None:
        """max_duration in seconds; None: no end."""
        return parse_duration(self.max_duration)

    @property
    def stall_timeout_s(self) -> int | Literal["auto", "none"]:
        """stall_timeout, a length of time in seconds."""
        if self.stall_timeout == "auto":
            return "auto"
        return parse_duration(self.stall_timeout) or "none"


class JobFile(TrainConfig, frozen=True, kw_only=True):
    """A job file: the keys of [train], and the command that is run in place of the script."""

    command: Annotated[
        tuple[Word, ...], Meta(description="a list of words: what is run in place of script, word for word")
    ] = ()

    def conflicts(self, said: AbstractSet[str]) -> Iterator[str]:
        """What is wrong between settings."""
        if self.command and not said.isdisjoint({"script", "args"}):
            yield "command is run in place of script and args: it cannot stand beside them"


class DataConfig(Settings, frozen=True, kw_only=True):
    """Where the records are, and where jobs leave what they made."""

    url: Annotated[
        FolderUrl | None,
        Meta(
            description='the folder in S3 that training reads, "s3://BUCKET/FOLDER/": $CLUSTER_DATA_URL for the script'
        ),
    ] = None
    results: Annotated[
        FolderUrl | None,
        Meta(
            description='the folder in S3 that jobs write to, "s3://BUCKET/FOLDER/": $CLUSTER_RESULTS_URL for the '
            "script"
        ),
    ] = None
    mode: Annotated[
        Literal["auto", "native", "stage"],
        Meta(
            description='how MXNet reads and saves s3://: "native": by itself; "stage": by local files; "auto": by '
            "itself where it can"
        ),
    ] = "auto"
    cache_gib: Annotated[
        Literal["auto"] | Annotated[float, finite, Meta(gt=0)],
        Meta(
            description='for "stage": how many GiB are kept on a node at most; "auto": as many as its disk has room for'
        ),
    ] = "auto"
    cache_dir: Annotated[
        str,
        Shape(CACHE_PATTERN),
        Meta(
            description='for "stage": the folder of a node that data is kept in: "/data/cache", "~/cache"; "auto": on '
            "its fastest disk"
        ),
    ] = "auto"
