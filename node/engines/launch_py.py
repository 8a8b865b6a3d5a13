"""MXNet's own tools/launch.py: by ssh to the hosts of its hostfile, or with all processes on the head."""

from collections.abc import Mapping, Sequence

from node.engines import ps_lite
from node.engines.engine import (
    RANK,
    WORLD_SIZE,
    Engine,
    Framework,
    Head,
    HeadLaunch,
    HostLaunch,
    Launch,
    NewProcess,
    Rendezvous,
    Report,
    Started,
    list_hosts,
    take_turns,
)
from node.programs import program_words
from node.protocol import Order

MXNET_ROLES = ("scheduler", "server", "worker")
LAUNCHER_FOLDER = "CLUSTER_LAUNCHER_FOLDER"
"""The variable with launch.py's folder, if that is not in the environment."""
P3 = {"DMLC_PS_VAN_TYPE": "p3", "DMLC_PS_WATER_MARK": "10"}  # the values that launch.py --p3 sets


class LaunchPy(Engine):
    """The base class of launch.py's launchers. Its processes are those of ps-lite: a scheduler, servers and workers."""

    program = "launch.py"
    frameworks: frozenset[Framework] = frozenset({"mxnet"})
    variables: tuple[str, ...] = ("DMLC_",)

    def uses_kv_store(self, framework: Framework) -> bool:
        """Always true: launch.py starts no other processes."""
        return True

    def plan_launches(self, order: Order, head: Head) -> tuple[Launch, ...]:
        """The launch of launch.py; without servers, the launch of the one worker.

        Without servers, launch.py would start a scheduler that waits forever for a worker that does not need it.
        """
        if not order.spec.servers:
            return (HostLaunch("worker", list_hosts(order)[0].ip, {RANK: "0", WORLD_SIZE: "1"}),)
        words = [order.spec.python, order.hosts[0].ip, "-n", str(order.spec.workers), "-s", str(order.spec.servers)]
        words += ["--launcher", self.name]
        words += self._options(order, head)
        launch = program_words("launch", *words, *head.role_words)
        return (HeadLaunch(tuple(launch), self.program, env=self._environment(order, head)),)

    def _options(self, order: Order, head: Head) -> list[str]:
        hostfile = [] if self.name == "local" else ["-H", head.hostfile]
        return [*hostfile, "--p3"] if order.train.p3 else hostfile

    def _environment(self, order: Order, head: Head) -> dict[str, str]:
        """The variables of launch.py itself."""
        return {LAUNCHER_FOLDER: order.image_launcher} if order.image_launcher is not None else {}

    def find_rendezvous(self, role: str, launched: Mapping[str, str]) -> Rendezvous | None:
        """The scheduler's address and port: ps-lite itself would wait for them silently and forever."""
        if role not in ("server", "worker") or "DMLC_PS_ROOT_URI" not in launched:
            return None
        return Rendezvous("the scheduler's", launched["DMLC_PS_ROOT_URI"], int(launched["DMLC_PS_ROOT_PORT"]))

    def environment(self, process: NewProcess) -> dict[str, str]:
        """The variables for ps-lite."""
        values = dict(process.launched)
        if process.role not in MXNET_ROLES or "DMLC_ROLE" not in values:
            return values
        if "DMLC_INTERFACE" in process.own:
            values.pop("DMLC_NODE_HOST", None)  # would override the interface
        elif process.address:
            values["DMLC_NODE_HOST"] = process.address
            if process.interface:
                values["DMLC_INTERFACE"] = process.interface
        wanted = dict(P3) if process.p3 else {}
        if process.role != "scheduler":
            wanted["PS_VERBOSE"] = "1"
        values.update((key, value) for key, value in wanted.items() if key not in process.own)
        return values

    def read_line(self, line: str) -> Report | None:
        """The report in a line of ps-lite."""
        return ps_lite.read(line)


class SshLaunchPy(LaunchPy):
    """`--launcher ssh`: servers first, then workers, each on the next line of the hostfile."""

    name = "ssh"

    def place(self, hosts: Sequence[str], *, head: str, workers: int, servers: int) -> Started:
        """Places processes as launch.py does."""
        return take_turns(hosts, servers, role="server") + take_turns(hosts, workers, role="worker", first=servers)


class LocalLaunchPy(LaunchPy):
    """`--launcher local`: all processes on the head."""

    name = "local"
    is_on_head = True

    def place(self, hosts: Sequence[str], *, head: str, workers: int, servers: int) -> Started:
        """Places processes as launch.py does."""
        return take_turns([head], servers, role="server") + take_turns([head], workers, role="worker")
