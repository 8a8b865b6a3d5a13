"""What a supervisor prepares on the head for an engine's launcher: its files, its port and its environment."""

import os
import shutil

from node import instance_credentials, job_folder, ports
from node.engines import ENGINES
from node.engines.engine import Head
from node.programs import CODE_DIR, SHIM, SHIM_OPTIONS, shim_words
from node.protocol import Order
from node.setup import process_tree, setup_env


def prepare(order: Order) -> Head:
    """Writes the hostfile and the stand-in for mpirun's ssh, and chooses the job's port. Raises OSError.

    Returns what the engine's launches need.
    """
    engine = ENGINES[order.train.launcher]
    port = 0 if engine.ports is None else ports.choose(engine.ports)
    folder = job_folder.path(order.spec.id, "bin")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    mpi_ssh = os.path.join(folder, "mpi-ssh")
    with open(mpi_ssh, "w") as stream:
        stream.write(f'#!/bin/sh\nexec {order.spec.python} {SHIM_OPTIONS} {CODE_DIR}{SHIM} --ssh "$@"\n')
    os.chmod(mpi_ssh, 0o700)
    hostfile = job_folder.path(order.spec.id, "hosts")
    with open(hostfile, "w") as stream:
        stream.write("".join(line + "\n" for line in engine.render_hostfile(order)))
    role_words = tuple(shim_words(engine.variables, python=order.spec.python))
    return Head(hostfile=hostfile, mpi_ssh=mpi_ssh, role_words=role_words, port=port)


def environment(order: Order) -> dict[str, str]:
    """Returns the environment of launchers on the head: this login's, without secrets."""
    env = setup_env.reach_near(setup_env.of_login(os.environ))
    env["PATH"] = ":".join([os.path.dirname(order.spec.python), "/usr/local/bin:/usr/bin:/bin"])
    env["CLUSTER_SOCKET"] = job_folder.path(order.spec.id, "socket")
    env[process_tree.JOB_VARIABLE] = order.spec.id
    return env


def clean_up(job: str) -> None:
    """Removes the files of `prepare`."""
    shutil.rmtree(job_folder.path(job, "bin"), ignore_errors=True)
    job_folder.remove(job_folder.path(job, "hosts"))


def take_credentials(order: Order) -> None:
    """Sets the instance's credentials in the job's secrets if it uses them. Raises CredentialsError."""
    if order.spec.nodes_credentials:
        others = {name: value for name, value in order.secrets.items() if not name.startswith("AWS_")}
        order.secrets = others | instance_credentials.wait_for().variables
