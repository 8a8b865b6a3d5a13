"""PyTorch: torchrun on every node, or no launcher at all. Processes meet at the address and port of rank 0."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from node.engines.engine import (
    INIT_METHOD,
    LOCAL_RANK,
    RANK,
    WORLD_SIZE,
    Engine,
    Framework,
    Head,
    HostLaunch,
    Launch,
    NewProcess,
    Rendezvous,
    Started,
    hosts_by_rank,
    take_turns,
)
from node.programs import PYTHON_OPTIONS
from node.protocol import HostSettings, JobHost, Order

PORTS, PROBE_PORT = range(29500, 29999), 29999
"""torchrun's default port is 29500; Linux uses none of these for outgoing connections. Nodes try to reach each other on
a port that no job gets: on that of the job, a program would take the trial for a connection of its own."""


class TorchEngine(Engine):
    """The base class of both engines: each node's processes have consecutive ranks, in the order of the hosts."""

    uses_slots = True
    idle_cpu_share = 0.02  # Gloo's thread polls: about 0.005
    rank_variable = "RANK"
    ports = PORTS

    def place(self, hosts: Sequence[str], *, head: str, workers: int, servers: int) -> Started:
        """One process for each entry of `hosts`, then in turn."""
        return take_turns(hosts, workers, role="worker")

    def find_rendezvous(self, role: str, launched: Mapping[str, str]) -> Rendezvous | None:
        """The host where rank 0 listens: without it, the others would wait for minutes."""
        if "MASTER_ADDR" not in launched or launched.get("RANK") == "0":
            return None
        return Rendezvous("the node of rank 0:", launched["MASTER_ADDR"], PROBE_PORT)

    def environment(self, process: NewProcess) -> dict[str, str]:
        """The variables for torch.distributed, and the interface in the syntax of Gloo and of NCCL."""
        env = dict(process.launched)
        ours = {RANK: "RANK", WORLD_SIZE: "WORLD_SIZE", LOCAL_RANK: "LOCAL_RANK"}
        env.update((name, env[theirs]) for name, theirs in ours.items() if theirs in env)
        if "MASTER_ADDR" in env:
            env[INIT_METHOD] = f"tcp://{env['MASTER_ADDR']}:{env['MASTER_PORT']}"
        if process.interface:
            # NCCL treats a name as a prefix unless = precedes it.
            wanted = {"GLOO_SOCKET_IFNAME": process.interface, "NCCL_SOCKET_IFNAME": f"={process.interface}"}
            env.update((name, value) for name, value in wanted.items() if name not in process.own)
        return env


def _nodes(order: Order) -> Iterator[tuple[int, JobHost, int]]:
    """Yields (node rank, host, rank of its first process) for each host with workers."""
    first = 0
    for node_rank, host in enumerate(hosts_by_rank(order)):
        yield node_rank, host, first
        first += host.workers


class TorchrunEngine(TorchEngine):
    """torchrun, one on each node, with a static rendezvous. It starts shim.py in place of each process."""

    name = "torchrun"
    program = "torchrun"
    frameworks: frozenset[Framework] = frozenset({"pytorch"})
    # The variables that torchrun sets for a process, of PyTorch 1.13 to 2.13 (torch/distributed/elastic/, in
    # agent/server/local_elastic_agent.py and multiprocessing/api.py). Whole names: only these leave the container of
    # a launcher.
    variables = (
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME"),
        *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT"),
        *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID"),
        *("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE"),
        *("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"),
    )

    def plan_launches(self, order: Order, head: Head) -> tuple[Launch, ...]:
        """One torchrun for each node; variables tell it its node rank and the rendezvous."""
        nodes = list(_nodes(order))
        master = {"MASTER_ADDR": nodes[0][1].ip, "MASTER_PORT": str(head.port)}
        return tuple(
            HostLaunch(
                "launcher",
                host.ip,
                {"GROUP_RANK": str(number), "GROUP_WORLD_SIZE": str(len(nodes)), **master}
                | {"LOCAL_WORLD_SIZE": str(host.workers)},
            )
            for number, host, _ in nodes
        )

    def launcher_words(
        self, at: HostSettings, launched: Mapping[str, str], role_words: Sequence[str]
    ) -> tuple[str, ...]:
        """The command line of torchrun. PyTorch 1.13 accepts its options only with underscores."""
        return (
            *(at.python, PYTHON_OPTIONS, "-m", "torch.distributed.run"),
            *("--nnodes", launched["GROUP_WORLD_SIZE"], "--node_rank", launched["GROUP_RANK"]),
            *("--nproc_per_node", launched["LOCAL_WORLD_SIZE"], "--max_restarts", "0", "--rdzv_backend", "static"),
            *("--master_addr", launched["MASTER_ADDR"], "--master_port", launched["MASTER_PORT"]),
            *("--no_python", *role_words),
        )

    def find_rendezvous(self, role: str, launched: Mapping[str, str]) -> Rendezvous | None:
        """Each torchrun must reach the first one; its processes use the same port."""
        is_first = launched.get("GROUP_RANK") == "0"
        return None if role != "launcher" or is_first else super().find_rendezvous(role, launched)

    def environment(self, process: NewProcess) -> dict[str, str]:
        """For torchrun itself, only the interface: its options contain the rest."""
        return super().environment(replace(process, launched={}) if process.role == "launcher" else process)


class EnvEngine(TorchEngine):
    """Starts each process directly, with the variables that torchrun would set (`init_method="env://"`)."""

    name = "env"
    program = "the supervisor"

    def plan_launches(self, order: Order, head: Head) -> tuple[Launch, ...]:
        """One launch for each process, by rank."""
        nodes = list(_nodes(order))
        world = {"WORLD_SIZE": str(order.spec.workers), "MASTER_ADDR": nodes[0][1].ip, "MASTER_PORT": str(head.port)}
        return tuple(
            HostLaunch(
                "worker",
                host.ip,
                {"RANK": str(first + local), "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(host.workers)}
                | {"GROUP_RANK": str(number), **world},
            )
            for number, host, first in nodes
            for local in range(host.workers)
        )

    def environment(self, process: NewProcess) -> dict[str, str]:
        """Also the variables by which Lightning and JAX find their place, unless the user sets them."""
        env = super().environment(process)
        if "RANK" not in env:
            return env
        more = {
            "NODE_RANK": env["GROUP_RANK"],
            "JAX_COORDINATOR_ADDRESS": f"{env['MASTER_ADDR']}:{env['MASTER_PORT']}",
            "JAX_NUM_PROCESSES": env["WORLD_SIZE"],
            "JAX_PROCESS_ID": env["RANK"],
        }
        return {**{name: value for name, value in more.items() if name not in process.own}, **env}
