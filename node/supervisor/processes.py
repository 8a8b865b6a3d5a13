"""The processes of a job: their state, their orders, and which of them are missing or have failed."""

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Optional

from msgspec.structs import replace

from node import job_folder
from node.programs import CODE_DIR, PYTHON_OPTIONS, launched_words, proxy_words
from node.protocol import Container, JobHost, NewFiles, Order, Place, RecordRole, copy_settings
from node.setup import process_tree
from node.supervisor.event_loop import Connection
from node.wire import Found, Message, RoleOrder
from train.engines import ENGINES
from train.engines.engine import ADDRESSES

SSH_PORT = 22
IMAGES_PYTHON = "python3"
HOST_PATH = "/usr/local/bin:/usr/bin:/bin"
MOST_PAIRS = 4  # the most pairs of hosts that cannot reach each other in a message
IDENTITY = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE")  # whose AWS credentials
SETUP = 'cd "$2" && PATH=$3:$PATH && eval "$1"'  # a login shell's PATH lacks the job's Python
JOB_ROLES = ("scheduler", "server", "worker")  # without the roles that start them


def with_secrets(env: Mapping[str, str], secrets: Mapping[str, str]) -> dict[str, str]:
    """Adds the job's secrets to a process's environment, without AWS credentials if the environment has some.

    A mixture of keys and tokens would be invalid.
    """
    is_own = any(name in env for name in IDENTITY)
    made = {**{name: secrets[name] for name in secrets if not (is_own and name in IDENTITY)}, **env}
    if "AWS_ACCESS_KEY_ID" in env:
        made.pop("CLUSTER_DATA_CREDENTIALS", None)  # staging uses these keys, not the instance profile's
    return made


class JobProcess:
    """One process of the job.

    title: its name in messages, without rank and host. by: the process on the head that runs its ssh. heard_at: the
    time of its last message, by the monotonic clock; None before its host's first message. at: the index of its running
    command. was_ended: whether role.py has ended it. why: role.py's own error. left: after its end, the processes on
    its host that do not end. bound: ps-lite's address and port. blocked: ports that it cannot reach. boot: its host's
    boot, from process_tree.boot. files: the job's new files on its host at its end.
    """

    def __init__(
        self, number: int, role: str, host: str, connection: Optional[Connection] = None, *, title: str = ""
    ) -> None:
        self.number, self.role, self.host, self.connection = number, role, host, connection
        self.title = title or role
        self.rank: Optional[int] = None
        self.pid: Optional[int] = None
        self.started_at: Optional[float] = None
        self.ended_at: Optional[float] = None
        self.exit_code: Optional[int] = None
        self.signal: Optional[int] = None
        self.introduced_at = time.monotonic()
        self.by: Optional[int] = None
        self.heard_at: Optional[float] = None
        self.at = 0
        self.was_ended = False
        self.why: Optional[str] = None
        self.left: Optional[tuple[Found, ...]] = None
        self.bound: Optional[tuple[str, int]] = None
        self.blocked: tuple[str, ...] = ()
        self.boot: Optional[str] = None
        self.files: Optional[NewFiles] = None

    @property
    def name(self) -> str:
        """Its name in messages."""
        rank = "" if self.rank is None else f" {self.rank}"
        pid = "" if self.pid is None else f" (process {self.pid})"
        return f"{self.title}{rank} on {self.host}{pid}"

    @property
    def short_name(self) -> str:
        """The name without the pid."""
        return self.name.partition(" (")[0]

    @property
    def failed(self) -> bool:
        """Whether it failed by itself."""
        return self.exit_code not in (None, 0) and not self.was_ended

    def note_end(self, message: Message) -> None:
        """Stores its program's report of its end."""
        self.was_ended, self.left = message.ended, message.left
        self.at, self.why, self.files = message.at, message.why, message.files

    def record(self) -> RecordRole:
        """Returns the process in the form of the job's record."""
        return RecordRole(**{name: getattr(self, name) for name in RecordRole.__struct_fields__})


class Processes:
    """All processes of one attempt, in the order in which they connected. first: the number of the first process."""

    def __init__(self, order: Order, first: int = 0) -> None:
        self.order, self.first = order, first
        self.engine = ENGINES[order.launcher]
        self.all: list[JobProcess] = []
        self.use(order.hosts)
        # The place of the cluster's nodes, in the same form as that of other hosts.
        self._node = Place(
            user="",
            port=SSH_PORT,
            python=order.python,
            code_dir=CODE_DIR,
            cwd=order.cwd,
            command=order.command,
            tree=order.tree,
        )

    def use(self, hosts: tuple[JobHost, ...]) -> None:
        """Uses these hosts, the head first."""
        self.hosts = hosts
        self.head = hosts[0].name
        self._names = {host.ip: host.name for host in hosts}
        self._by_name = {host.name: host for host in hosts}

    # -- lists ---------------------------------------------------------------------------------------------------

    def add(self, role: str, host: str, connection: Optional[Connection] = None) -> JobProcess:
        """Adds a process and returns it. host: its address or name."""
        title = self.engine.program if role == "launcher" else ""
        made = JobProcess(self.first + len(self.all), role, self._names.get(host, host), connection, title=title)
        self.all.append(made)
        return made

    def order_on_host(self, process: JobProcess) -> int:
        """Returns a process's index among the processes of its role on its host."""
        same = [other for other in self.all if (other.role, other.host) == (process.role, process.host)]
        return same.index(process)

    def of_job(self) -> list[JobProcess]:
        """The scheduler, servers and workers."""
        return [process for process in self.all if process.role in JOB_ROLES]

    def of(self, role: str) -> list[JobProcess]:
        """The processes of a role."""
        return [process for process in self.all if process.role == role]

    def expected(self) -> Counter[tuple[str, str]]:
        """The number of processes by (role, host) that the engine starts."""
        wanted = Counter({("worker", host.name): host.workers for host in self.hosts})
        wanted += Counter({("server", host.name): host.servers for host in self.hosts})
        if self.order.servers:
            wanted["scheduler", self.head] += 1
        return wanted

    def missing(self) -> list[str]:
        """Returns descriptions of the processes that have not started, such as "server on node-1"."""
        return self._lacking(process for process in self.of_job() if process.pid is not None)

    def unknown(self) -> list[str]:
        """Returns descriptions of the processes that have not connected, as in `missing`."""
        return self._lacking(self.of_job())

    def _lacking(self, found: Iterable[JobProcess]) -> list[str]:
        lacking = self.expected() - Counter((process.role, process.host) for process in found)
        return [
            f"{count} {role}s on {host}" if count > 1 else f"{role} on {host}"
            for (role, host), count in sorted(
                lacking.items(), key=lambda item: (JOB_ROLES.index(item[0][0]), item[0][1])
            )
        ]

    def all_started(self) -> bool:
        """Whether all processes run or have run."""
        return sum(1 for process in self.of_job() if process.pid is not None) >= sum(self.expected().values())

    def all_ended_on(self, host: str) -> bool:
        """Whether all workers of a host have ended."""
        ended = sum(1 for process in self.of("worker") if process.host == host and process.exit_code is not None)
        return ended >= self.expected()["worker", host]

    def is_set_up(self) -> bool:
        """Whether the set-up commands have succeeded on all hosts."""
        return sum(1 for one in self.of("setup") if one.exit_code == 0) >= len(self.hosts)

    def has_rebooted(self, host: str, boot: str) -> bool:
        """Whether a host has booted since its processes started. boot: its current boot."""
        known = [process.boot for process in self.all if process.host == host and process.boot is not None]
        return any(process_tree.is_other_boot(one, boot) for one in known)

    def find_unclean(self) -> list[JobHost]:
        """Returns the hosts where processes may remain: one has not reported its end, or its program still runs."""
        names = {
            one.host for one in self.all if one.connection is not None and (one.left is None or one.connection.is_open)
        }
        return [host for host in self.hosts if self.engine.has_programs_of_its_own or host.name in names]

    def unjoined(self) -> list[JobProcess]:
        """The servers and workers without a rank, once all have bound their ports."""
        these = self.of("server") + self.of("worker")
        all_bound = len(these) == self.order.servers + self.order.workers and all(one.bound for one in these)
        return [process for process in these if process.rank is None] if all_bound else []

    def uses_kv_store(self) -> bool:
        """Whether a worker has created a dist kv-store: it has bound a port or has a rank."""
        return any(process.bound or process.rank is not None for process in self.of("worker"))

    # -- their orders --------------------------------------------------------------------------------------------

    def order_of(self, process: JobProcess, launched: dict[str, str], *, attempt: int = 1) -> RoleOrder:
        """Returns the order of a process. The scheduler and launchers get no secrets."""
        order, host = self.order, self._by_name.get(process.host)
        place = (host.place if host is not None else None) or self._node
        own = {"server": order.env_server, "worker": order.env_worker}.get(process.role, {})
        env = {**self._env_at(place), **own}
        if process.role not in ("scheduler", "launcher"):
            env = with_secrets(env, order.secrets)
        env.setdefault("CLUSTER_JOB_NAME", order.name)
        env.setdefault(ADDRESSES, ",".join(self.engine.list_addresses(order)))
        if order.output_url:
            env.setdefault("CLUSTER_OUTPUT_URL", order.output_url)
        if process.role == "worker" and self.order_on_host(process) < len(order.gpus_per_worker):
            gpus = order.gpus_per_worker[self.order_on_host(process)]
            env.setdefault("CUDA_VISIBLE_DEVICES", ",".join(str(gpu) for gpu in gpus))
        is_setup = process.role == "setup"
        commands = self.preparation(place) if is_setup else (place.command,)
        if is_setup and order.containers:  # it runs on the host, where the image's PATH is meaningless
            env["PATH"] = f"{os.path.dirname(place.python)}:{HOST_PATH}"
        container = self._container_of(process)
        if process.role == "launcher":
            commands = (self._launcher_words(place, launched, in_image=container is not None),)
            if process.host == self.head:
                env["CLUSTER_SOCKET"] = job_folder.path(order.job, "socket")  # its processes connect directly
        return RoleOrder(
            job=order.job,
            role=process.role,
            host=process.host,
            launcher=order.launcher,
            address=host.ip if host is not None else None,
            launched=launched,
            commands=commands,
            cwd=place.cwd,
            tree=place.tree,
            env=env,
            setup=order.setup,
            data_url=self._data_url_of(process),
            container=container,
            volumes=order.volumes if process.role in ("worker", "setup") else (),
            attempt=attempt,
            watches_notice=self._watches_notice(process),
            authorities=order.authorities,
            **copy_settings(order),
        )

    def _watches_notice(self, process: JobProcess) -> bool:
        """Whether a process's program asks EC2 for spot notices: the first of each role on an instance does."""
        host = self._by_name.get(process.host)
        is_instance = host is not None and bool(host.instance_id)
        return is_instance and process.role in JOB_ROLES and self.order_on_host(process) == 0

    def _container_of(self, process: JobProcess) -> Optional[Container]:
        """Returns the container of a process, or None. A launcher runs in one if only the image contains it."""
        found = self.order.containers.get(process.host)
        if process.role == "launcher":
            return found if found is not None and not found.has_environment else None
        return found if process.role in JOB_ROLES else None

    def _launcher_words(self, place: Place, launched: Mapping[str, str], *, in_image: bool) -> tuple[str, ...]:
        """Returns the command line of a launcher on a host. in_image: whether it is the image's own launcher."""
        variables = self.engine.variables
        if not in_image:
            role_words = launched_words(variables, python=place.python, code_dir=place.code_dir)
            return self.engine.launcher_words(place, launched, role_words)
        there = replace(place, python=IMAGES_PYTHON)
        words = self.engine.launcher_words(
            there, launched, proxy_words(variables, python=IMAGES_PYTHON, code_dir=place.code_dir)
        )
        return tuple(word for word in words if word != PYTHON_OPTIONS)  # images may need their PYTHONPATH

    def _data_url_of(self, process: JobProcess) -> Optional[str]:
        """Returns the URL that a process's program tries to read, or None: one worker on each host reads it."""
        check = self.order.data_check
        return check.url if check and process.role == "worker" and self.order_on_host(process) == 0 else None

    def _env_at(self, place: Place) -> dict[str, str]:
        """Returns the job's variables; on a host that is not a node, with that host's Python first on PATH."""
        env = dict(self.order.env)
        if place is self._node:
            return env
        ours = os.path.dirname(self.order.python) + ":"
        if env.get("PATH", "").startswith(ours):
            env["PATH"] = os.path.dirname(place.python) + ":" + env["PATH"][len(ours) :]
        env.pop("CLUSTER_DATA_CREDENTIALS", None)  # without an instance profile it uses the head's credentials
        return env

    def preparation(self, place: Optional[Place] = None) -> tuple[tuple[str, ...], ...]:
        """Returns the commands that a host (default: a node) runs before the job, the same number on each."""
        place = place or self._node
        path = os.path.dirname(place.python)
        commands = tuple(("bash", "-lc", SETUP, "setup", words, place.cwd, path) for words in self.order.job_setup)
        return (*commands, self.engine.requirement) if self.engine.requirement else commands

    # -- failures ------------------------------------------------------------------------------------------------

    def describe_exit(self, process: JobProcess) -> str:
        """Describes a failed process as an error, such as "worker 1 on node-1 ended with ..."."""
        how = (
            f"was killed by signal {process.signal}" if process.signal else f"ended with exit code {process.exit_code}"
        )
        how += ": " + process.why if process.why else ""
        if process.role != "setup" or process.at < 0:
            return f"{process.name} {how}"
        words = self.preparation()[process.at]
        if words == self.engine.requirement:
            return self.engine.requirement_hint
        return f"the set-up command `{words[4]}` on {process.host} {how}"

    def describe_failures(self, failed: Sequence[JobProcess]) -> str:
        """Returns one message for processes that failed at about the same time, which describes the first of them."""
        first = self.describe_exit(failed[0])
        same = sum(1 for process in failed if process.role == failed[0].role)
        if same == len(failed) == 1:
            return first
        if same == len(failed):
            kind = "set-ups" if failed[0].role == "setup" else failed[0].role + "s"
            return f"{len(failed)} {kind} failed; first: {first}"
        return f"{len(failed)} processes failed; first: {first}"

    def is_node(self, host: str) -> bool:
        """Whether a host is a node of the cluster, not one of the user's own hosts."""
        known = self._by_name.get(host)
        return known is None or known.place is None

    def places_of_others(self, host: str) -> tuple[tuple[str, int], ...]:
        """Returns the (address, port) pairs of all other hosts with processes, for a host to try.

        These are ps-lite's ports or, on nodes without a known one, the port of ssh.
        """
        return tuple(place for name, place in self._places() if name != host)

    def _places(self) -> list[tuple[str, tuple[str, int]]]:
        """Returns [(host, (address, port)), ...]."""
        # The port of a process that has ended is closed.
        found = [(one.host, one.bound) for one in self.of_job() if one.bound and one.exit_code is None]
        known = {host for host, _ in found}
        rest = sorted({process.host for process in self.of_job()} - known)
        return found + [(name, (self._by_name[name].ip, SSH_PORT)) for name in rest if self.is_node(name)]

    def describe_unreachable(self) -> str:
        """Describes which hosts cannot reach which others, as the processes have reported; "" if all can."""
        hosts = {f"{address}:{port}": (name, address, port) for name, (address, port) in self._places()}
        ports: dict[tuple[str, str, str], set[int]] = {}
        for process in self.all:
            for name, address, port in (hosts[one] for one in process.blocked if one in hosts):
                ports.setdefault((process.host, name, address), set()).add(port)
        found = []
        for (source, target, address), blocked in sorted(ports.items()):
            listed = "port{} {}".format("s" * (len(blocked) > 1), ", ".join(str(port) for port in sorted(blocked)))
            found.append(f"{source} cannot reach {target} ({address}) on TCP {listed}")
        more = len(found) - MOST_PAIRS
        return "; ".join(found[:MOST_PAIRS]) + (f"; and {more} more" if more > 0 else "")

    def describe_blocked(self) -> str:
        """Describes which hosts cannot reach which ports, as the processes have reported; "" for none."""
        places = {"{}:{}".format(*process.bound): process for process in self.all if process.bound}
        found = {
            f"{process.host} cannot reach port {place.rpartition(':')[2]} of the {places[place].role} on "
            f"{places[place].host}"
            for process in self.all
            for place in process.blocked
            if place in places
        }
        return "; ".join(sorted(found)[:MOST_PAIRS])
