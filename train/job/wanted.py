"""A job as it would be, for the checks that look at it before anything of it starts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from train.job.config import TrainConfig
from train.job.placement import Placement
from train.job.survey import Data

_OF_DATA = ("--data-dir", "--data-train", "--benchmark")
_WITH_CUDA = re.compile(r"mxnet-cu[0-9]|source@")


class Problem(NamedTuple):
    """Why a job is refused, and what to do."""

    said: str
    hint: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """A job as it would be. shipped: the name of this project's own script that it runs, None for what is the user's.

    command: the words after --, or a job file's, that it runs; () for a script. library: "mxnet==1.7.0.post2",
    "source@v1.7.x". data: what lies in [data] url; None when that is not known, or not set. region: the nodes'.
    nodes_credentials: the job has the nodes' own, and not those of this machine. staged: its data is read from files
    that are fetched to the nodes.
    """

    config: TrainConfig
    placement: Placement
    library: str
    shipped: str | None
    command: tuple[str, ...]
    has_files: bool
    data_url: str | None = None
    data: Data | None = None
    region: str | None = None
    nodes_credentials: bool = False
    staged: bool = False

    @property
    def is_command(self) -> bool:
        """Whether it is no script."""
        return bool(self.command)

    @property
    def workers(self) -> int:
        """How many there are in all."""
        return sum(self.placement.workers.values())

    @property
    def servers(self) -> int:
        """How many there are in all."""
        return sum(self.placement.servers.values())

    @property
    def has_gpus(self) -> bool:
        """Whether there are any on its workers' nodes."""
        return any(node.facts.gpus for node in self.placement.of_workers)

    @property
    def gpus(self) -> Mapping[str, int]:
        """How many GPUs the library can use on each node that workers run on, by the node's name."""
        usable = _WITH_CUDA.match(self.library) is not None
        return {node.host.name: len(node.facts.gpus) if usable else 0 for node in self.placement.of_workers}

    @property
    def distributed(self) -> bool:
        """Whether gradients go over the network."""
        return self.config.kv_store.startswith("dist")

    @property
    def reads_something_else(self) -> bool:
        """Whether it is one of this project's scripts that has been told to."""
        return self.shipped is not None and any(word.partition("=")[0] in _OF_DATA for word in self.config.args)

    @property
    def reads_data_url(self) -> bool:
        """Whether it is one of this project's scripts that has not been told to read something else."""
        return self.data_url is not None and self.shipped is not None and not self.reads_something_else

    @property
    def fewest_gpus(self) -> int:
        """On one of its workers' nodes."""
        return min(self.gpus.values(), default=0)
