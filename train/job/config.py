"""[train], [data] and [queue] of cluster.toml: what a job runs, reads, and requests from a batch scheduler."""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Annotated, Literal

from msgspec import Meta

from foundation.durations import parse_duration, render_duration
from foundation.setting_types import Settings, Shape, finite
from node.engines import check_launcher
from node.train_settings import ProcessCount, TrainSettings, Word
from train.job.selection import check_nodes
from train.s3.url import check_place, is_s3

# Patterns match the whole value.
FolderUrl = Annotated[str, check_place]
# MXNet's readers give ; # and ? a special meaning.
CACHE_PATTERN = r"auto|(/|~/)[A-Za-z0-9_.][A-Za-z0-9_./ +-]*"
SHORTEST_WALLTIME_S = 60  # schedulers count in minutes
QUEUE_PATTERN = r"([A-Za-z0-9_][A-Za-z0-9_.@:+-]*)?"


class TrainConfig(TrainSettings, frozen=True, kw_only=True):
    """What `cluster train` runs by default; its command line overrides it."""

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


class JobFile(TrainConfig, frozen=True, kw_only=True):
    """A job file: the keys of [train], and a command that replaces the script."""

    command: Annotated[
        tuple[Word, ...], Meta(description="a list of words: a command to run instead of script, word for word")
    ] = ()

    def conflicts(self, given: AbstractSet[str]) -> Iterator[str]:
        """Yields a message for each contradiction between settings."""
        yield from super().conflicts(given)
        if self.command and not given.isdisjoint({"script", "args"}):
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
            f"[train] max_duration is {render_duration(max_duration_s)}, but [queue] walltime is "
            f"{render_duration(walltime_s)}: the scheduler would end the job first"
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
            description='how programs read s3://: "native": themselves; "stage": files that are copied to the nodes '
            'before the job; "auto": MXNet itself where it can'
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
