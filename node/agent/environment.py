"""A process's environment, output folder and open-file limit, and checks of the network."""

import os
import re
import socket
from collections.abc import Mapping, Sequence

from foundation.thread_pool import map_in_threads
from node import job_folder
from node.agent import container, notice
from node.engines import ENGINES
from node.engines.engine import IDENTITY, Engine, NewProcess
from node.setup import process_tree, setup_env
from node.setup.interfaces import find_interface
from node.wire import AgentOrder, RoleOrder

REACH_TIMEOUT_S = 2.0
CONNECT_TIMEOUT_S = 5.0
AGENT = "CLUSTER_AGENT"  # shim.py
_IDENTITY = re.compile(r"\$(?:({0})\b|\{{({0})\}})".format("|".join(IDENTITY)))


def make(shared: AgentOrder, order: RoleOrder, socket: str) -> dict[str, str]:
    """Returns the environment of a job's process: this login's, then exports of set-up commands, then the job's own.

    shared: the agent's order. socket: the agent's, to which a launcher announces its processes. Raises OSError,
    ValueError.
    """
    env = setup_env.reach_near(_merge(shared, order))
    return {**env, AGENT: socket} if order.role == "launcher" else env


def _merge(shared: AgentOrder, order: RoleOrder) -> dict[str, str]:
    job, train = shared.spec.id, shared.spec.train
    engine = ENGINES[train.launcher]
    base = setup_env.of_login(os.environ)
    own = dict(order.env)
    interface = find_interface(order.address) if order.address else None
    process = NewProcess(order.role, order.launched, own, order.address, interface, train.p3)
    own.update(engine.environment(process))
    own |= {"CLUSTER_HOST": shared.host, "CLUSTER_ATTEMPT": str(shared.attempt)}
    if shared.attempt > 1:
        own["CLUSTER_RESUME"] = "1"
    output_url = own.get("CLUSTER_OUTPUT_URL", "")
    if output_url.startswith("/"):  # on a volume
        os.makedirs(output_url, exist_ok=True)
    own["CLUSTER_OUTPUT_DIR"] = job_folder.make_output_dir(job)
    if shared.authorities is not None:  # botocore does not use the host's certificates
        own.setdefault("AWS_CA_BUNDLE", job_folder.write_authorities(job, shared.authorities))
    if order.role in ("worker", "server"):
        own[notice.VARIABLE] = notice.place_of(job, shared.attempt)
        os.makedirs(os.path.dirname(own[notice.VARIABLE]), mode=0o700, exist_ok=True)
    own[process_tree.JOB_VARIABLE] = job
    if order.container is not None:  # set-up commands have changed the host, not the image
        found = container.find_cache(own)  # replaces the user's ~/
        return {
            **container.base(),
            **container.patch_mxnet(engine.program, order.container, own),
            **container.adapt_mpi(order.container, own),
            **found,
        }
    if shared.spec.setup is None:
        return {**base, **own}
    changes = setup_env.read(shared.spec.setup)
    own_path = own.get("PATH", base.get("PATH", ""))
    path = setup_env.merge({"PATH": own_path}, changes)["PATH"]
    # The job's own Python comes first, whatever the commands loaded.
    first = own_path.partition(":")[0]
    words = [first, *(word for word in path.split(":") if word != first)]
    merged: dict[str, str] = setup_env.merge(base, changes)
    return {**merged, **own, "PATH": ":".join(words)}


def find_blocked(engine: Engine, order: RoleOrder) -> str | None:
    """Returns why this host cannot reach the other processes of the job, or None."""
    rendezvous = engine.find_rendezvous(order.role, order.launched)
    error = None if rendezvous is None else try_port(rendezvous.host, rendezvous.port)
    if rendezvous is None or error is None:
        return None
    return (
        f"{rendezvous.what} port {rendezvous.port} on {rendezvous.host} cannot be reached from here ({error}): does "
        "the security group allow everything between its members?"
    )


def fill_in(words: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """Replaces $CLUSTER_RANK and similar variables in a command by their values; those without a value stay. Pure."""
    return tuple(_IDENTITY.sub(lambda found: env.get(found[1] or found[2], found[0]), word) for word in words)


def find_unreachable(addresses: Sequence[tuple[str, int]]) -> list[str]:
    """Returns the ports that this host cannot reach, sorted, as ["10.0.0.5:34567", ...]. Tries all at once."""
    errors = map_in_threads(lambda one, _: try_port(*one, REACH_TIMEOUT_S), addresses, threads=len(addresses))
    return sorted(f"{host}:{port}" for (host, port), error in zip(addresses, errors, strict=True) if error is not None)


def try_port(host: str, port: int, timeout_s: float = CONNECT_TIMEOUT_S) -> OSError | None:
    """Returns why this host cannot reach a port, or None. A port that refuses or closes the connection is reachable."""
    try:
        socket.create_connection((host, port), timeout=timeout_s).close()
    except ConnectionError:  # for example, the scheduler does not listen yet
        return None
    except OSError as error:
        return error
    return None
