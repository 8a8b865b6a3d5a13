"""The interface of an engine, which starts a job's processes and interprets their output.

Pure: the supervisor on the head carries out its plans, and the agent on each node calls it. An engine defines where
processes run (`place`), what starts them (`plan_launches`), which environment they get (`environment`), and what their
output means (`read_line`).
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from node.protocol import HostSettings, JobHost, Order

SSH_PORT = 22

Framework = Literal["mxnet", "pytorch", "none"]
"""[bootstrap] framework."""
Started = Counter[tuple[str, str]]
"""The number of processes by (role, host)."""
RANK, WORLD_SIZE = "CLUSTER_RANK", "CLUSTER_WORLD_SIZE"
LOCAL_RANK, INIT_METHOD = "CLUSTER_LOCAL_RANK", "CLUSTER_INIT_METHOD"
IDENTITY = (RANK, WORLD_SIZE, LOCAL_RANK, INIT_METHOD)
"""Variables that identify a process of a job; [train] args may use them."""


class Head(Struct, frozen=True):
    """The resources that the supervisor prepares on the head for a launch.

    hostfile, mpi_ssh: paths of the hostfile and of the stand-in for mpirun's ssh. role_words: the command line that a
    launcher on the head starts in place of each process. port: the job's port; 0 for none.
    """

    hostfile: str
    mpi_ssh: str
    role_words: tuple[str, ...]
    port: int = 0


class HeadLaunch(Struct, frozen=True):
    """A launcher on the head, which starts the job's processes and must not end before them.

    words: its command line. program: its name in messages. env: variables that are added to the environment of the
    head's programs.
    """

    words: tuple[str, ...]
    program: str
    env: Mapping[str, str] = field(default_factory=dict)


class HostLaunch(Struct, frozen=True):
    """A process that the supervisor itself starts on a host: a worker or, with the role "launcher", a launcher.

    address: the host's address. launched: the variables that identify the process.
    """

    role: str
    address: str
    launched: Mapping[str, str] = field(default_factory=dict)


Launch = HeadLaunch | HostLaunch


class NewProcess(Struct, frozen=True):
    """A process that is about to start on its host.

    launched: the variables that identify it. own: the user's variables, which take precedence. address: the host's
    private address. interface: the network interface with that address. p3: [train] p3.
    """

    role: str
    launched: Mapping[str, str]
    own: Mapping[str, str]
    address: str | None = None
    interface: str | None = None
    p3: bool = False


class Rendezvous(Struct, frozen=True):
    """The address that a process must be able to connect to, to meet the others. what: its name in messages."""

    what: str
    host: str
    port: int


class Report(Struct, frozen=True):
    """The content of a line that a library prints. bound: the address and port where the process listens.

    is_hidden: only `environment` causes this line, and users do not need it. is_noise: it is no sign of progress, as
    the library may print it endlessly.
    """

    rank: int | None = None
    bound: tuple[str, int] | None = None
    is_hidden: bool = False
    is_noise: bool = False


class Engine(ABC):
    """One way to start processes. Subclasses set `name` and `program`, and override the rest where they differ."""

    name = ""
    """[train] launcher."""
    program = ""
    """The launcher's name in messages, such as "launch.py"."""
    frameworks: frozenset[Framework] = frozenset({"mxnet", "pytorch", "none"})
    """The values of [bootstrap] framework that it works with."""
    uses_slots = False
    """Whether a node runs as many processes as [train] processes sets; otherwise one, or as many as -n distributes."""
    variables: tuple[str, ...] = ()
    """The names, or their prefixes, of the variables by which the launcher identifies a process."""
    rank_variable = RANK
    """The variable with the rank of a process, if the launcher decides on the ranks."""
    ports: range | None = None
    """The ports of which each job gets one; None if it needs none."""
    idle_cpu_share = 0.002
    """The most CPU that a process uses while it waits for others, as a share of a core. MXNet's processes use none."""
    is_on_head = False
    """Whether all of its processes run on the head."""

    def uses_kv_store(self, framework: Framework) -> bool:
        """Whether MXNet's kv-store connects the processes: there may be servers and a scheduler."""
        return False

    @abstractmethod
    def place(self, hosts: Sequence[str], *, head: str, workers: int, servers: int) -> Started:
        """The number of processes by (role, host), without the scheduler."""

    @abstractmethod
    def plan_launches(self, order: Order, head: Head) -> tuple[Launch, ...]:
        """The launches for an order."""

    def launcher_words(
        self, at: HostSettings, launched: Mapping[str, str], role_words: Sequence[str]
    ) -> tuple[str, ...]:
        """The command line of a launcher on a host (HostLaunch). role_words: the command line of one process there."""
        return tuple(role_words)

    def find_rank(self, launched: Mapping[str, str]) -> int | None:
        """The rank of a new process, or None if its variables do not contain it."""
        rank = launched.get(self.rank_variable, "")
        return int(rank) if rank.isdecimal() else None

    def render_hostfile(self, order: Order) -> tuple[str, ...]:
        """The lines of the launcher's hostfile."""
        return tuple(map(_entry, list_hosts(order)))

    def find_rendezvous(self, role: str, launched: Mapping[str, str]) -> Rendezvous | None:
        """The rendezvous that a process must reach before it starts, or None."""
        return None

    def environment(self, process: NewProcess) -> dict[str, str]:
        """The variables of a process on its host."""
        return dict(process.launched)

    def read_line(self, line: str) -> Report | None:
        """The report in a line of a process's output, or None."""
        return None


def take_turns(hosts: Sequence[str], count: int, *, role: str, first: int = 0) -> Started:
    """Distributes processes over the hosts in turn. Pure."""
    return Counter((role, hosts[(first + index) % len(hosts)]) for index in range(count))


def assign_hosts(order: Order, granted: Sequence[JobHost]) -> None:
    """Moves an order's processes to the hosts that a batch scheduler has assigned, in the order of these hosts.

    The order then contains only these hosts and the head, which comes first.
    """
    known = {host.name: host for host in order.hosts}
    moved = dict(zip(dict.fromkeys(order.train.hosts), granted, strict=False))
    head = order.hosts[0]
    placed = {
        host.name: replace(host, workers=known[name].workers, servers=known[name].servers)
        for name, host in moved.items()
    }
    first = placed.pop(head.name, replace(head, workers=0, servers=0))
    train = replace(order.train, hosts=tuple(moved[name].name for name in order.train.hosts))
    order.spec, order.hosts = replace(order.spec, train=train), (first, *placed.values())


def _entry(host: JobHost) -> str:
    """A host's line in the hostfile."""
    return host.ip if host.own_host is None or host.own_host.port == SSH_PORT else f"{host.ip}:{host.own_host.port}"


def list_hosts(order: Order) -> list[JobHost]:
    """The hosts of the lines of the hostfile. Pure."""
    known = {host.name: host for host in order.hosts}
    return [known[name] for name in order.train.hosts]


def hosts_by_rank(order: Order) -> tuple[JobHost, ...]:
    """The hosts with workers, in the order of the hostfile. Pure."""
    return tuple(host for host in dict.fromkeys(list_hosts(order)) if host.workers)
