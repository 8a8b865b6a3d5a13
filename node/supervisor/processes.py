"""The processes of a job: their state, their orders, and which of them are missing or have failed."""

import asyncio
import os
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from node import job_folder
from node.causes.cause import MOST_LINES
from node.engines import ENGINES
from node.engines.engine import HeadLaunch
from node.programs import CODE_DIR, PYTHON_OPTIONS, shim_words
from node.protocol import SAVED_AT, STAGED, Container, HostSettings, JobHost, Order, Process, printable
from node.supervisor.agents import HostAgent
from node.wire import Exited, Reach, RoleOrder

SSH_PORT = 22
IMAGES_PYTHON = "python3"
HOST_PATH = "/usr/local/bin:/usr/bin:/bin"
LONGEST_LINE = 200  # characters of a line of output in a message
MOST_PAIRS = 4  # the most pairs of hosts that cannot reach each other in a message
IDENTITY = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE")  # whose AWS credentials
SETUP = 'cd "$2" && PATH=$3:$PATH && eval "$1"'  # a login shell's PATH lacks the job's Python
DAEMON = "mpirun's daemon (orted)"  # launch.py would wait for its processes if it fails
JOB_ROLES = ("scheduler", "server", "worker")  # without the roles that start them


def with_secrets(env: Mapping[str, str], secrets: Mapping[str, str]) -> dict[str, str]:
    """Adds the job's secrets to a process's environment, without AWS credentials if the environment has some.

    A mixture of keys and tokens would be invalid.
    """
    is_own = any(name in env for name in IDENTITY)
    merged = {**{name: secrets[name] for name in secrets if not (is_own and name in IDENTITY)}, **env}
    if "AWS_ACCESS_KEY_ID" in env:
        merged.pop("CLUSTER_DATA_CREDENTIALS", None)  # staging uses these keys, not the instance profile's
    return merged


class JobProcess:
    """One process of the job.

    title: its name in messages, without rank and host. agent: that of its host. at: the index of its running command.
    was_ended: whether the agent has ended it. why: the agent's own error. last_line: of its output, without blank ones.
    bound: ps-lite's address and port. is_contained: it runs in a container.
    """

    def __init__(self, number: int, role: str, host: str, agent: HostAgent, *, title: str = "") -> None:
        self.number, self.role, self.host, self.agent = number, role, host, agent
        self.title = title or role
        self.rank: int | None = None
        self.pid: int | None = None
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.has_ended = asyncio.Event()
        self.at = 0
        self.was_ended = False
        self.why: str | None = None
        self.last_line = ""
        self.last_lines: deque[str] = deque(maxlen=MOST_LINES)
        self.bound: tuple[str, int] | None = None
        self.is_contained = False

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
    def is_daemon(self) -> bool:
        """Whether it is one of mpirun's daemons, which may leave processes and end."""
        return self.title == DAEMON

    @property
    def failed(self) -> bool:
        """Whether it failed by itself."""
        return self.exit_code not in (None, 0) and not self.was_ended

    @property
    def succeeded(self) -> bool:
        """Whether it ended by itself with exit code 0: one that was ended may have handled SIGTERM."""
        return self.exit_code == 0 and not self.was_ended

    def note_end(self, message: Exited) -> None:
        """Stores the agent's report of its end."""
        self.exit_code, self.signal, self.ended_at = message.exit_code, message.signal, time.time()
        self.was_ended, self.at, self.why = message.ended, message.at, message.why
        self.has_ended.set()

    def record(self) -> Process:
        """Returns the process in the form of the job's record."""
        return Process(**{name: getattr(self, name) for name in Process.__struct_fields__})


class Processes:
    """All processes of one attempt, in the order of their start.

    agents: by their hosts' names. first: the number of the first process.
    """

    def __init__(self, order: Order, agents: Mapping[str, HostAgent], first: int = 0) -> None:
        self.order, self.agents, self.first = order, agents, first
        self.engine = ENGINES[order.train.launcher]
        self.all: list[JobProcess] = []
        # The settings of the cluster's nodes, in the same form as those of own hosts.
        self._node = HostSettings(
            user="",
            port=SSH_PORT,
            python=order.spec.python,
            code_dir=CODE_DIR,
            cwd=order.spec.cwd,
            command=order.spec.command,
            tree=order.tree,
        )

    # -- lists ---------------------------------------------------------------------------------------------------

    def add(self, role: str, host: str, *, title: str = "") -> JobProcess:
        """Adds a process and returns it. host: its address or name. title: as in JobProcess."""
        title = title or (self.engine.program if role == "launcher" else "")
        known = self.find_host(host)
        name = host if known is None else known.name
        process = JobProcess(self.first + len(self.all), role, name, self.agents[name], title=title)
        self.all.append(process)
        return process

    def order_on_host(self, process: JobProcess) -> int:
        """Returns a process's index among the processes of its role on its host."""
        same = [other for other in self.all if (other.role, other.host) == (process.role, process.host)]
        return same.index(process)

    def by_number(self, number: int) -> JobProcess | None:
        """The process with a number, or None."""
        at = number - self.first
        return self.all[at] if 0 <= at < len(self.all) else None

    def find_host(self, address: str) -> JobHost | None:
        """The host of the job with this address or name, or None."""
        return next((host for host in self.order.hosts if address in (host.ip, host.name)), None)

    def lacks(self, role: str, host: str) -> bool:
        """Whether the job has a process of this role on this host that nobody has started."""
        started = sum(1 for process in self.all if (process.role, process.host) == (role, host))
        return started < self.expected()[role, host]

    def of_job(self) -> list[JobProcess]:
        """The scheduler, servers and workers."""
        return [process for process in self.all if process.role in JOB_ROLES]

    def of(self, role: str) -> list[JobProcess]:
        """The processes of a role."""
        return [process for process in self.all if process.role == role]

    def expected(self) -> Counter[tuple[str, str]]:
        """The number of processes by (role, host) that the engine starts."""
        wanted = Counter({("worker", host.name): host.workers for host in self.order.hosts})
        wanted += Counter({("server", host.name): host.servers for host in self.order.hosts})
        if self.order.spec.servers:
            wanted["scheduler", self.order.hosts[0].name] += 1
        return wanted

    def missing(self) -> list[str]:
        """Returns descriptions of the processes that have not started, such as "server on node-1"."""
        return self._lacking(process for process in self.of_job() if process.pid is not None)

    def unknown(self) -> list[str]:
        """Returns descriptions of the processes that no launcher has announced, as in `missing`."""
        return self._lacking(self.of_job())

    def _lacking(self, found: Iterable[JobProcess]) -> list[str]:
        lacking = self.expected() - Counter((process.role, process.host) for process in found)
        return [
            f"{count} {role}s on {host}" if count > 1 else f"{role} on {host}"
            for (role, host), count in sorted(
                lacking.items(), key=lambda item: (JOB_ROLES.index(item[0][0]), item[0][1])
            )
        ]

    def all_ended(self) -> bool:
        """Whether all processes have run and ended: an engine's launcher may not have announced the last one yet."""
        ended = sum(1 for process in self.of_job() if process.exit_code is not None)
        return ended >= sum(self.expected().values())

    def all_ended_on(self, host: str) -> bool:
        """Whether all workers of a host have ended."""
        ended = sum(1 for process in self.of("worker") if process.host == host and process.exit_code is not None)
        return ended >= self.expected()["worker", host]

    def name_first_on(self, host: str) -> str:
        """Returns the name of the first process that runs on a host; the host's own if there is none."""
        running = (one for one in self.all if one.host == host and one.exit_code is None)
        first = next((one for one in running if one.role != "launcher"), None)
        return host if first is None else first.name

    def unjoined(self) -> list[JobProcess]:
        """The servers and workers without a rank, once all have bound their ports."""
        these = self.of("server") + self.of("worker")
        all_bound = len(these) == self.order.spec.servers + self.order.spec.workers and all(one.bound for one in these)
        return [process for process in these if process.rank is None] if all_bound else []

    def uses_kv_store(self) -> bool:
        """Whether a worker has created a dist kv-store: it has bound a port or has a rank."""
        return any(process.bound or process.rank is not None for process in self.of("worker"))

    # -- their orders --------------------------------------------------------------------------------------------

    def order_of_head(self, launch: HeadLaunch, env: Mapping[str, str]) -> RoleOrder:
        """Returns the order of a launcher on the head, which gets none of the job's variables. env: its environment."""
        return self._order_of_launcher(launch.words, {**env, **launch.env})

    def order_of_program(self, text: str) -> RoleOrder:
        """Returns the order of one of mpirun's daemons on a host, as a shell command."""
        # A wheel may have installed orted there.
        path = f"{os.path.dirname(self.order.spec.python)}:{HOST_PATH}"
        return self._order_of_launcher(("/bin/sh", "-c", text), {"PATH": path})

    def _order_of_launcher(self, words: tuple[str, ...], env: dict[str, str]) -> RoleOrder:
        spec = self.order.spec
        return RoleOrder(role="launcher", commands=(words,), folder=job_folder.path(spec.id), env=env)

    def order_of(self, process: JobProcess, launched: dict[str, str]) -> RoleOrder:
        """Returns the order of a process. The scheduler and launchers get no secrets."""
        order, host = self.order, self.find_host(process.host)
        settings = (host.own_host if host is not None else None) or self._node
        own = {"server": order.env_server, "worker": order.env_worker}.get(process.role, {})
        env = {**self._env_at(settings), **own}
        if process.role not in ("scheduler", "launcher"):
            env = with_secrets(env, order.secrets)
        if process.role == "worker" and self.order_on_host(process) < len(order.gpus_per_worker):
            gpus = order.gpus_per_worker[self.order_on_host(process)]
            env.setdefault("CUDA_VISIBLE_DEVICES", ",".join(str(gpu) for gpu in gpus))
        is_setup = process.role == "setup"
        commands = self.preparation(settings) if is_setup else (settings.command,)
        if is_setup and host is not None and not host.workers:
            env = {name: value for name, value in env.items() if name not in (STAGED, SAVED_AT)}
        if is_setup and order.containers:  # it runs on the host, where the image's PATH is meaningless
            env["PATH"] = f"{os.path.dirname(settings.python)}:{HOST_PATH}"
        container = self._container_of(process)
        process.is_contained = container is not None
        if process.role == "launcher":
            commands = (self._launcher_words(settings, launched, in_image=container is not None),)
        return RoleOrder(
            role=process.role,
            python=settings.python,
            address=host.ip if host is not None else None,
            launched=launched,
            commands=commands,
            folder=os.path.join(settings.cwd, order.train.subfolder) if order.train.subfolder else settings.cwd,
            env=env,
            container=container,
        )

    def _container_of(self, process: JobProcess) -> Container | None:
        """Returns the container of a process, or None. A launcher runs in one if only the image contains it."""
        found = self.order.containers.get(process.host)
        if process.role == "launcher":
            return found if found is not None and not found.has_environment else None
        return found if process.role in JOB_ROLES else None

    def _launcher_words(
        self, settings: HostSettings, launched: Mapping[str, str], *, in_image: bool
    ) -> tuple[str, ...]:
        """Returns the command line of a launcher on a host. in_image: whether it is the image's own launcher."""
        variables = self.engine.variables
        if in_image:
            settings = replace(settings, python=IMAGES_PYTHON)
        shim = shim_words(variables, python=settings.python, code_dir=settings.code_dir)
        words = self.engine.launcher_words(settings, launched, shim)
        if not in_image:
            return words
        return tuple(word for word in words if word != PYTHON_OPTIONS)  # images may need their PYTHONPATH

    def _env_at(self, settings: HostSettings) -> dict[str, str]:
        """Returns the job's variables; on a host that is not a node, with that host's Python first on PATH."""
        env = dict(self.order.env)
        if settings is self._node:
            return env
        ours = os.path.dirname(self.order.spec.python) + ":"
        if env.get("PATH", "").startswith(ours):
            env["PATH"] = os.path.dirname(settings.python) + ":" + env["PATH"][len(ours) :]
        env.pop("CLUSTER_DATA_CREDENTIALS", None)  # without an instance profile it uses the head's credentials
        return env

    def preparation(self, settings: HostSettings | None = None) -> tuple[tuple[str, ...], ...]:
        """Returns the commands that a host (default: a node) runs before the job, the same number on each."""
        settings = settings or self._node
        path = os.path.dirname(settings.python)
        commands: tuple[tuple[str, ...], ...]
        commands = tuple(("bash", "-lc", SETUP, "setup", words, settings.cwd, path) for words in self.order.train.setup)
        if STAGED in self.order.env or SAVED_AT in self.order.env:  # the agent brings the data before the first command
            commands = (*commands, ("true",))
        return commands

    # -- failures ------------------------------------------------------------------------------------------------

    def describe_exit(self, process: JobProcess) -> str:
        """Describes a failed process as an error, such as "worker 1 on node-1 ended with ..."."""
        how = (
            f"was killed by signal {process.signal}" if process.signal else f"ended with exit code {process.exit_code}"
        )
        if process.why:
            how += f": {process.why}"
        elif process.last_line and (process.role != "launcher" or process.is_daemon):
            is_cut = len(process.last_line) > LONGEST_LINE
            how += f"; its last line: {printable(process.last_line, LONGEST_LINE)}{'...' if is_cut else ''}"
        if process.role != "setup" or process.at < 0:
            return f"{process.name} {how}"
        words = self.preparation()[process.at]
        return f"the set-up command `{words[4]}` on {process.host} {how}"

    def describe_failures(self, failed: Sequence[JobProcess]) -> str:
        """Returns one message for processes that failed at about the same time, which describes the first of them."""
        first = self.describe_exit(failed[0]) + self._describe_done_before(failed[0])
        same = sum(1 for process in failed if process.role == failed[0].role)
        if same == len(failed) == 1:
            return first
        if same == len(failed):
            kind = "set-ups" if failed[0].role == "setup" else failed[0].role + "s"
            return f"{len(failed)} {kind} failed; first: {first}"
        return f"{len(failed)} processes failed; first: {first}"

    def _describe_done_before(self, failed: JobProcess) -> str:
        """Describes the workers that had ended with 0 before one failed, which may be the reason."""
        at = failed.ended_at or 0.0
        done = [one for one in self.of("worker") if one.exit_code == 0 and (one.ended_at or 0.0) <= at]
        if failed.role != "worker" or not done:
            return ""
        first = min(done, key=lambda one: one.ended_at or 0.0)
        more = f" and {len(done) - 1} more" if len(done) > 1 else ""
        return f"; before that, {first.short_name}{more} ended with exit code 0"

    def is_node(self, host: str) -> bool:
        """Whether a host is a node of the cluster, not one of the user's own hosts."""
        known = self.find_host(host)
        return known is None or known.own_host is None

    def have_them_reach(self, running: Iterable[JobProcess]) -> None:
        """Has the hosts of these processes try the ports of all others."""
        for host, agent in {process.host: process.agent for process in running}.items():
            agent.blocked = ()
            agent.put(Reach(self.addresses_of_others(host)))

    def addresses_of_others(self, host: str) -> tuple[tuple[str, int], ...]:
        """Returns the (address, port) pairs of all other hosts with processes, for a host to try."""
        return tuple(address for name, address in self._addresses() if name != host)

    def _addresses(self) -> list[tuple[str, tuple[str, int]]]:
        """Returns [(host, (address, port)), ...]: ps-lite's ports, and that of ssh on nodes without a known one."""
        # The port of a process that has ended is closed.
        found = [(one.host, one.bound) for one in self.of_job() if one.bound and one.exit_code is None]
        silent = {process.host for process in self.of_job()} - {host for host, _ in found}
        rest = sorted(
            (host.name, host.ip) for host in self.order.hosts if host.name in silent and host.own_host is None
        )
        return found + [(name, (address, SSH_PORT)) for name, address in rest]

    def describe_unreachable(self) -> str:
        """Describes which hosts cannot reach which others, as their agents have reported; "" if all can."""
        hosts = {f"{address}:{port}": (name, address, port) for name, (address, port) in self._addresses()}
        ports: dict[tuple[str, str, str], set[int]] = {}
        for source, agent in self.agents.items():
            for name, address, port in (hosts[one] for one in agent.blocked if one in hosts):
                ports.setdefault((source, name, address), set()).add(port)
        found = []
        for (source, target, address), blocked in sorted(ports.items()):
            listed = "port{} {}".format("s" * (len(blocked) > 1), ", ".join(str(port) for port in sorted(blocked)))
            found.append(f"{source} cannot reach {target} ({address}) on TCP {listed}")
        more = len(found) - MOST_PAIRS
        return "; ".join(found[:MOST_PAIRS]) + (f"; and {more} more" if more > 0 else "")
