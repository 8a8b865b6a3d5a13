"""What an engine is: how the processes of a job are started. Pure: it decides, and the supervisor on the head acts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from train.job.protocol import Order


@dataclass(frozen=True)
class Launch:
    """What is started on the head. program: of train/node/__main__.py, with its arguments.

    env: over the environment of all such programs. is_launcher: the processes are started by it, and its end is a
    failure while they run; else it is one process of the job.
    """

    program: str
    arguments: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    is_launcher: bool = True


@dataclass(frozen=True)
class HostFiles:
    """What the supervisor has written for a launch: the hostfile, and the stand-ins for ssh. Paths."""

    hostfile: str
    mpi_ssh: str


class Engine(ABC):
    """One way to start processes. Subclasses set `name`, and override what is different."""

    name = ""
    gather_s = 0.3
    """How long to wait for the reason why the connection to a process was lost, in seconds."""
    has_programs_of_its_own = False
    """It starts programs on the hosts that nobody tells the supervisor of."""
    is_on_head = False
    """All of its processes run on the head."""
    is_for_nodes_alone = ""
    """Why it cannot reach hosts that are not nodes of the cluster; "" if it can."""
    requirement: tuple[str, ...] = ()
    """A command that every host has to run well before the job; () for none."""
    requirement_hint = ""
    """What is told where a host does not."""

    @abstractmethod
    def place(self, hosts: Sequence[str], *, head: str, workers: int, servers: int) -> Counter[tuple[str, str]]:
        """How many processes of each (role, host) there are; the scheduler is not counted."""

    @abstractmethod
    def plan_launch(self, order: Order, files: HostFiles, role_words: Sequence[str]) -> Launch:
        """What starts the processes. role_words: the command line that runs one of them."""


def take_turns(hosts: Sequence[str], count: int, *, role: str, first: int = 0) -> Counter[tuple[str, str]]:
    """Processes one after the other on the hosts, round and round. Pure."""
    return Counter((role, hosts[(first + index) % len(hosts)]) for index in range(count))
