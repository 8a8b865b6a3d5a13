"""The form of an engine: a way to start a job's processes. Pure: the supervisor on the head carries it out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from train.job.protocol import Order


@dataclass(frozen=True)
class Launch:
    """What to start on the head. program: one of train/node/__main__.py, with its arguments.

    env: added to the environment of such programs. is_launcher: it starts the job's processes, and must not end before
    them; else it is itself one process of the job.
    """

    program: str
    arguments: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    is_launcher: bool = True


@dataclass(frozen=True)
class HostFiles:
    """Paths of the files that the supervisor writes for a launch: the hostfile, and the stand-ins for ssh."""

    hostfile: str
    mpi_ssh: str


class Engine(ABC):
    """One way to start processes. Subclasses set `name` and override what differs."""

    name = ""
    gather_s = 0.3
    """How long to wait for the reason of a lost connection, in seconds."""
    has_programs_of_its_own = False
    """It starts programs on the hosts that the supervisor does not know of."""
    is_on_head = False
    """All of its processes run on the head."""
    is_for_nodes_alone = ""
    """Why it cannot use hosts that are not nodes of the cluster; "" if it can."""
    requirement: tuple[str, ...] = ()
    """A command that must succeed on every host before the job; () for none."""
    requirement_hint = ""
    """The message if the requirement fails."""

    @abstractmethod
    def place(self, hosts: Sequence[str], *, head: str, workers: int, servers: int) -> Counter[tuple[str, str]]:
        """The number of processes by (role, host), without the scheduler."""

    @abstractmethod
    def plan_launch(self, order: Order, files: HostFiles, role_words: Sequence[str]) -> Launch:
        """The launch for an order. role_words: the command line of one process."""


def take_turns(hosts: Sequence[str], count: int, *, role: str, first: int = 0) -> Counter[tuple[str, str]]:
    """Distribute processes over the hosts in turn. Pure."""
    return Counter((role, hosts[(first + index) % len(hosts)]) for index in range(count))
