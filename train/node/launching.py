"""How launch.py is started on the head: its files, its environment, its command.

Python 3.6 and later, standard library only.
"""

import json
import os

import job_folder
import processes
import ssh_proxy

KEPT = ("HOME", "USER", "LOGNAME", "LANG", "CLUSTER_SSH")


def start(order):
    """Start launch.py, or without servers the worker. Returns (process, whether it is launch.py). Raises OSError."""
    tools = write_tools(order)
    hostfile = job_folder.path(order["job"], "hosts")
    with open(hostfile, "w") as stream:
        stream.write("".join(line + "\n" for line in order["hostfile"]))
    env = environment(order, tools)
    folder = job_folder.path(order["job"])
    if not order["servers"]:
        host = (order["hostfile"] or [order["hosts"][0]["ip"]])[0].partition(":")[0]
        return processes.start(_ours(order, "ssh_proxy.py", "--role", "worker", host), env, folder), False
    words = [order["python"], _here("launch.py"), order["hosts"][0]["ip"]]
    words += ["-n", str(order["workers"]), "-s", str(order["servers"]), "--launcher", order["launcher"]]
    if order["launcher"] != "local":
        words += ["-H", hostfile]
    if order["p3"] and order["launcher"] != "mpi":  # there it would become the name of the program
        words += ["--p3"]
    return processes.start(words + _ours(order, "role.py", "launched"), env, folder), True


def start_setup(order, host):
    """Start what reaches a host for the job's set-up commands. Raises OSError."""
    return _start_proxy(order, "--role", "setup", host["ip"])


def start_join(order, waiting):
    """Start what reaches a process that waits on its host, as role.py's `wait_for_call` tells of it. Raises OSError."""
    host = next(host for host in order["hosts"] if host["name"] == waiting["host"])
    return _start_proxy(order, "--join", host["ip"], json.dumps(waiting))


def _start_proxy(order, *words):
    env = environment(order, os.path.dirname(order["python"]))
    return processes.start(_ours(order, "ssh_proxy.py", *words), env, job_folder.path(order["job"]))


def environment(order, tools):
    """The environment of launch.py: nothing of ours but what the programs below it need, and no secret."""
    env = {key: os.environ[key] for key in KEPT if key in os.environ}
    env["PATH"] = ":".join([tools, os.path.dirname(order["python"]), "/usr/local/bin:/usr/bin:/bin"])
    env["CLUSTER_SOCKET"] = job_folder.path(order["job"], "socket")
    env["CLUSTER_HOST"] = order["hosts"][0]["name"]
    env["CLUSTER_HOSTS"] = ",".join("%s=%s" % (host["ip"], host["name"]) for host in order["hosts"])
    others = {host["ip"]: {key: host[key] for key in ssh_proxy.PLACE} for host in order["hosts"] if "python" in host}
    if others:
        env["CLUSTER_OTHERS"] = json.dumps(others)
    # ssh is to be more patient than the supervisor: that knows more of what was silent.
    env["CLUSTER_SSH_PATIENCE"] = str(max(3, int(order["silence_timeout_s"] / 2) + 2))
    env[processes.JOB_VARIABLE] = order["job"]
    if order["launcher"] == "mpi":
        env["OMPI_MCA_plm_rsh_agent"] = env["CLUSTER_MPI_SSH"] = os.path.join(tools, "mpi-ssh")
        orted = os.path.join(os.path.dirname(order["python"]), "orted")
        if os.path.exists(orted):  # a wheel has brought it, where other nodes would not look
            env["OMPI_MCA_orte_launch_agent"] = orted
        env["OMPI_MCA_plm_rsh_no_tree_spawn"] = "1"  # only the head has a key for the others
        env["OMPI_MCA_rmaps_base_mapping_policy"] = "node"
        env["OMPI_MCA_rmaps_base_oversubscribe"] = "1"
        env["OMPI_MCA_hwloc_base_binding_policy"] = "none"
        if os.getuid() == 0:
            env["OMPI_ALLOW_RUN_AS_ROOT"] = env["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    return env


def write_tools(order):
    """The folder with what launch.py and mpirun are to take for ssh."""
    folder = job_folder.path(order["job"], "bin")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    for name, words in (("ssh", _ours(order, "ssh_proxy.py")), ("mpi-ssh", _ours(order, "ssh_proxy.py", "--mpi"))):
        with open(os.path.join(folder, name), "w") as stream:
            stream.write('#!/bin/sh\nexec %s "$@"\n' % " ".join(words))
        os.chmod(os.path.join(folder, name), 0o700)
    return folder


def clean_up(job):
    """Remove what was only for launch.py."""
    folder = job_folder.path(job, "bin")
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        os.unlink(os.path.join(folder, name))
    if os.path.isdir(folder):
        os.rmdir(folder)
    job_folder.remove(job_folder.path(job, "hosts"))


def _ours(order, program, *words):
    return [order["python"]] + ssh_proxy.PYTHON_FLAGS + [_here(program)] + list(words)


def _here(program):
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), program)
