"""[train] and [data] of cluster.toml: what a job runs, and what it reads."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, model_validator

from bootstrap.config import FOLDER_URL_PATTERN, check_command
from train.choices import ENV_NAME_PATTERN, KvStore, Launcher

GcType = Literal["none", "2bit"]
EnvName = Annotated[str, Field(pattern=ENV_NAME_PATTERN)]
# What can stand on a command line or in an environment: all but NUL.
Word = Annotated[str, Field(pattern=r"^[^\x00]*$")]
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
HOST_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9.:-]*$"
# A folder of the nodes; "" is none. Not /: what is copied there would lie over the system.
FOLDER_PATTERN = r"^((/|~/)[^/\x00][^\x00]*)?$"
# MXNet's readers take ; # and ? in a path for something else.
CACHE_PATTERN = r"^(auto|(/|~/)[A-Za-z0-9_.][A-Za-z0-9_./ +-]*)$"
_DURATION = re.compile(r"([1-9][0-9]*)(s|m|h|d)")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MAX_DURATION_S = 30 * 86400


def parse_duration(value: int | str) -> int | None:
    """Seconds of "90m", "2h", "1d", "45s" or a number; None for "none". Pure. Raises ValueError."""
    if value == "none":
        return None
    if isinstance(value, str):
        found = _DURATION.fullmatch(value)
        if found is None:
            raise ValueError('not a length of time such as "90m", "2h", "1d" or seconds')
        value = int(found[1]) * _UNITS[found[2]]
    if not 1 <= value <= MAX_DURATION_S:
        raise ValueError("not from 1 second to 30 days")
    return value


def _check_duration(value: Any) -> Any:
    parse_duration(value)
    return value


def _check_gpus(gpus: tuple[int, ...]) -> tuple[int, ...]:
    if not gpus or len(set(gpus)) < len(gpus):
        raise ValueError("the same GPU twice, or none at all")
    return gpus


class TrainConfig(BaseModel):
    """What `cluster train` runs when its command line does not say otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    script: Word = Field(
        default="train_mnist.py",
        min_length=1,
        description="a script that ships with this project (train_mnist.py), or the path of your own",
    )
    args: Annotated[tuple[Word, ...], Strict(strict=False)] = Field(
        default=(), description="a list of words: arguments of the script, passed on word for word"
    )
    name: str = Field(
        default="auto",
        pattern=NAME_PATTERN,
        description='what jobs are called; "auto": after the script or the command; letters, digits, ".", "_" and "-"',
    )
    kv_store: KvStore = Field(
        default="dist_sync",
        description="how gradients are exchanged; given to the script as --kv-store",
    )
    gc_type: GcType = Field(
        default="none",
        description='"2bit": gradients are compressed on their way; given to the script as --gc-type',
    )
    gc_threshold: Annotated[float, Strict(strict=False)] = Field(
        default=0.5, gt=0, allow_inf_nan=False, description="a number above 0: --gc-threshold for the script"
    )
    p3: bool = Field(
        default=False, description="true: send parameters by their priority (launch.py --p3; MXNet 1.7 and later)"
    )
    workers: Literal["auto"] | Annotated[int, Field(ge=1, le=1000)] = Field(
        default="auto", description='how many worker processes, 1 to 1000; "auto": one for each node'
    )
    servers: Literal["auto"] | Annotated[int, Field(ge=1, le=1000)] = Field(
        default="auto", description='how many parameter server processes, 1 to 1000; "auto": as many as workers'
    )
    hosts: Annotated[tuple[Annotated[str, Field(pattern=HOST_PATTERN)], ...], Strict(strict=False)] = Field(
        default=(),
        description="a list of the nodes to run on, by name or private address, in this order; one may stand there "
        "several times; []: all of them",
    )
    launcher: Launcher = Field(
        default="ssh",
        description='how launch.py starts the processes: "ssh"; "mpi", with Open MPI; "local": all on the head',
    )
    gpus: (
        Literal["auto", "none"]
        | Annotated[tuple[Annotated[int, Field(ge=0, le=63)], ...], Strict(strict=False), AfterValidator(_check_gpus)]
    ) = Field(
        default="auto",
        description='the GPUs of each worker: a list of numbers, [0, 1]; "auto": all of its node, shared out among its '
        'workers; "none"',
    )
    env: dict[EnvName, Word] = Field(
        default={},
        description='environment variables of every process of the job, such as { OMP_NUM_THREADS = "4" }',
    )
    env_server: dict[EnvName, Word] = Field(
        default={}, description='environment variables of its servers alone, such as { OMP_NUM_THREADS = "1" }'
    )
    env_worker: dict[EnvName, Word] = Field(
        default={}, description='environment variables of its workers alone, such as { OMP_NUM_THREADS = "4" }'
    )
    sync_dst_dir: str = Field(
        default="",
        pattern=FOLDER_PATTERN,
        description='a folder of the nodes that your files are copied to, and the job run in: "/data/job", "~/job"; '
        '"": they stay where they are',
    )
    setup: Annotated[tuple[Annotated[str, AfterValidator(check_command)], ...], Strict(strict=False)] = Field(
        default=(), description="a list of commands that every node runs before the processes of each job"
    )
    open_files: Literal["auto"] | Annotated[int, Field(ge=256, le=1_000_000_000)] = Field(
        default="auto",
        description='how many files a process may have open, 256 at least; "auto": as many as its node allows',
    )
    start_timeout_s: int = Field(
        default=60, ge=5, le=3600, description="seconds that all processes of a job may take to start, 5 to 3600"
    )
    silence_timeout_s: int = Field(
        default=15,
        ge=5,
        le=3600,
        description="seconds that nothing may be heard of a process, or of its node, 5 to 3600",
    )
    max_duration: Annotated[int | str, AfterValidator(_check_duration)] = Field(
        default="none",
        description='how long a job may run: "90m", "2h", "1d" or seconds, 30 days at most; "none": for ever',
    )
    queue: bool = Field(default=False, description="true: wait for the job that runs, where there is one")

    @property
    def max_duration_s(self) -> int | None:
        """max_duration in seconds; None: no end."""
        return parse_duration(self.max_duration)


class JobFile(TrainConfig):
    """A job file: the keys of [train], and the command that is run in place of the script."""

    command: Annotated[tuple[Word, ...], Strict(strict=False)] = Field(
        default=(), description="a list of words: what is run in place of script, word for word"
    )

    @model_validator(mode="after")
    def _check_command(self) -> Self:
        if self.command and {"script", "args"} & self.model_fields_set:
            raise ValueError("command is run in place of script and args: it cannot stand beside them")
        return self

    def overrides(self) -> dict[str, Any]:
        """What it says over cluster.toml, by dotted key; what it does not say is not there."""
        said = self.model_dump(include=self.model_fields_set - {"command"})
        return {f"train.{key}": value for key, value in said.items()}


class DataConfig(BaseModel):
    """Where the records are, and where jobs leave what they made."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    url: str | None = Field(
        default=None,
        pattern=FOLDER_URL_PATTERN,
        description='the folder in S3 that training reads, "s3://BUCKET/FOLDER/": $CLUSTER_DATA_URL for the script',
    )
    results: str | None = Field(
        default=None,
        pattern=FOLDER_URL_PATTERN,
        description='the folder in S3 that jobs write to, "s3://BUCKET/FOLDER/": $CLUSTER_RESULTS_URL for the script',
    )
    mode: Literal["auto", "native", "stage"] = Field(
        default="auto",
        description='how MXNet reads s3://: "native": by itself; "stage": from local files that are fetched for it; '
        '"auto": by itself where it can',
    )
    cache_gib: Literal["auto"] | Annotated[float, Strict(strict=False), Field(gt=0, allow_inf_nan=False)] = Field(
        default="auto",
        description='for "stage": how many GiB are kept on a node at most; "auto": as many as its disk has room for',
    )
    cache_dir: str = Field(
        default="auto",
        pattern=CACHE_PATTERN,
        description='for "stage": the folder of a node that data is kept in: "/data/cache", "~/cache"; "auto": on its '
        "fastest disk",
    )
