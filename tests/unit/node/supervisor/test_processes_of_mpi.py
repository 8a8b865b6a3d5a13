"""Jobs whose processes an mpirun starts: on the head itself, and by its daemon on another node."""

import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

from job_host import LocalHead, job_host, lines_of

__all__ = ["job_host"]

# Like mpirun, it starts its own processes here, and others by a daemon, which the first command on a node leaves.
MPIRUN = """
import os, subprocess, sys, time
_, count, _, hostfile, *shim = sys.argv[1:]
with open(hostfile) as stream:
    hosts = [line.split()[0] for line in stream]
codes = os.path.join(os.environ["HOME"], "codes")
os.makedirs(codes)
for rank, host in enumerate(hosts):
    run = f"OMPI_COMM_WORLD_RANK={rank} OMPI_COMM_WORLD_SIZE={count} SECRET=canary " + " ".join(shim)
    text = f"setsid sh -c '{run}; echo $? >{codes}/new-{rank}; mv {codes}/new-{rank} {codes}/{rank}' &"
    words = ["sh", "-c", text] if rank == 0 else [os.environ["OMPI_MCA_plm_rsh_agent"], "-x", host, text]
    if subprocess.call(words):
        sys.exit("mpirun could not start a daemon")
for rank in range(len(hosts)):
    while not os.path.exists(f"{codes}/{rank}"):
        time.sleep(0.02)
    with open(f"{codes}/{rank}") as stream:
        if int(stream.read()):
            sys.exit(1)
"""


def order(host: LocalHead, program: str, **more: Any) -> dict[str, Any]:
    folder = Path(host.python).parent
    (folder / "mpirun").write_text(f"#!{sys.executable}\n{MPIRUN}")
    (folder / "orted").write_text("#!/bin/sh\n")
    for name in ("mpirun", "orted"):
        (folder / name).chmod(0o755)
    fields: dict[str, Any] = {"launcher": "mpi", "library": "pytorch", "kv_store": "none", "workers": 2, "servers": 0}
    return host.order("/bin/bash", "-c", program, env={"PATH": f"{folder}:{os.environ['PATH']}"}, **fields, **more)


def test_each_process_knows_its_place(job_host: LocalHead) -> None:
    program = "echo $CLUSTER_HOST $OMPI_COMM_WORLD_RANK $CLUSTER_RANK $CLUSTER_WORLD_SIZE $TOKEN $SECRET"
    result, log = job_host.run(order(job_host, program, secrets={"TOKEN": "hush"}))
    assert (result["state"], result["error"], result["left"]) == ("done", None, {})
    assert sorted(lines_of(log, "worker")) == ["node-0 0 0 2 hush", "node-1 1 1 2 hush"]


def test_a_killed_mpirun_ends_the_job(job_host: LocalHead) -> None:
    with job_host.asking("submit", order=order(job_host, "sleep 600")):
        job_host.wait_for('"state": "running"')
    os.kill(job_host.pid_of(r"python\S* \S*/mpirun "), signal.SIGKILL)
    result = job_host.result()
    assert (result["state"], result["exit_code"], result["left"]) == ("failed", 137, {})
    assert re.fullmatch(r"mpirun on node-0 \(process \d+\) was killed by signal 9", result["error"])
    assert not job_host.processes()
