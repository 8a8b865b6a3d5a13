"""What only a GPU can show; `make test-gpu` runs it where NVIDIA's driver and a Python with PyTorch are installed.

It needs no network, no sandbox, no ssh and no root. CLUSTER_GPU_PYTHON names the Python, if `python3` has no PyTorch.
"""

import glob
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bootstrap.environment.facts import parse_facts, render_facts_script
from bootstrap.ssh.node_program import LOADER, read_program
from foundation.decode import decode
from node.engines import ENGINES
from node.health import Report, judge
from node.job.stacks import list_collectives
from node.programs import program_words, shim_words
from node.protocol import HostSettings
from node.wire import Announced, Exited, Placed, Started, TakeStack
from node_agent import NodeAgent, home, run_agent
from node_facts import run_shell
from project import REPOSITORY
from train.job.placement import share_gpus
from waits import until

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("home")]
__all__ = ["home"]

TORCHRUN = {"launcher": "torchrun"}
COLUMNS = ("index", "name", "driver_version", "pci.bus_id", "uuid", "memory.used")
PYTHONS = (os.environ.get("CLUSTER_GPU_PYTHON"), "python3", "/opt/pytorch/bin/python3", sys.executable)
HAS_CUDA = "import torch; torch.ones(1, device='cuda'); print(torch.__version__)"
KERNEL_RUNS = """
import torch
held = torch.ones(1 << 28, device="cuda")  # 1 GiB
torch.cuda._sleep(1 << 50)  # days
print("runs", flush=True)
torch.cuda.synchronize()
"""
NCCL_SUM = """
import os, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
one = torch.ones(1 << 20, device="cuda")
dist.all_reduce(one)
print("sum", int(one[0]), "on", torch.cuda.current_device(), flush=True)
dist.destroy_process_group()
"""
WAITS_IN_NCCL = """
import os, time, torch, torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
ones = torch.ones(5, 3, device="cuda")
dist.all_reduce(ones)
torch.cuda.synchronize()
if rank < dist.get_world_size() - 1:
    dist.all_reduce(ones)
print("waits", flush=True)
time.sleep(600)
"""
TOO_MUCH = """
import torch
_, total = torch.cuda.mem_get_info()
torch.ones(total // 4 + 1, device="cuda")
"""
SEEN = "import torch; print(*(torch.cuda.get_device_properties(i).uuid for i in range(torch.cuda.device_count())))"


@dataclass(frozen=True)
class Gpu:
    """A GPU, as nvidia-smi reports it. used_mib: the memory in use."""

    index: int
    name: str
    driver: str
    bus: str
    uuid: str
    used_mib: int


@cache
def find_gpus() -> tuple[Gpu, ...]:
    """All GPUs of this machine, without those that are hidden from this process."""
    if shutil.which("nvidia-smi") is None:
        return ()
    words = ["nvidia-smi", f"--query-gpu={','.join(COLUMNS)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        return ()
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    return tuple(Gpu(int(row[0]), row[1], row[2], row[3], row[4], int(row[5])) for row in rows)


def used_mib() -> int:
    """The memory in use on the first GPU."""
    find_gpus.cache_clear()
    return find_gpus()[0].used_mib


@cache
def find_python() -> str | None:
    """A Python whose PyTorch can use the GPUs, or None."""
    for name in filter(None, PYTHONS):
        found = shutil.which(name)
        if found and subprocess.run([found, "-c", HAS_CUDA], capture_output=True, check=False).returncode == 0:
            return found
    return None


@pytest.fixture
def gpus() -> tuple[Gpu, ...]:
    return find_gpus() or pytest.skip("nvidia-smi finds no GPU here")


@pytest.fixture
def python(gpus: tuple[Gpu, ...]) -> str:
    return find_python() or pytest.skip("no Python here has a PyTorch that can use the GPU: set CLUSTER_GPU_PYTHON")


def test_this_machine(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> None:
    """Says what the other tests run on, or how many of them are skipped."""
    others = sum(1 for item in request.session.items if item.path == request.path) - 1
    gpus, python = find_gpus(), find_python()
    output = f"{others} GPU tests are skipped: no GPU, or no PyTorch that can use it"
    if gpus and python:
        version = subprocess.run([python, "-c", HAS_CUDA], capture_output=True, text=True, check=True).stdout.strip()
        output = f"{len(gpus)} x {gpus[0].name}, driver {gpus[0].driver}, PyTorch {version}: {others} GPU tests"
    record_property("result", output)
    assert others > 0


# -- facts and health --------------------------------------------------------------------------------------------------


def test_facts_name_the_gpus(gpus: tuple[Gpu, ...], home: Path) -> None:
    done = run_shell(render_facts_script("auto"), home, path=os.environ["PATH"])
    facts = parse_facts(done.stdout, node="here")
    assert [name for _, name in facts.gpus] == [gpu.name for gpu in gpus], done.stdout + done.stderr


def test_health_names_the_gpus(gpus: tuple[Gpu, ...]) -> None:
    done = subprocess.run(program_words("health"), capture_output=True, text=True, check=True)
    report = decode(done.stdout.encode(), Report)
    assert [gpu.name for gpu in report.gpus or ()] == [gpu.name for gpu in gpus]
    assert [gpu.bus.lower()[-10:] for gpu in report.gpus or ()] == [gpu.bus.lower()[-10:] for gpu in gpus]
    assert "GPU" not in " ".join(judge(report, gpus=len(gpus)))


def test_verify_computes_on_every_gpu(gpus: tuple[Gpu, ...], python: str) -> None:
    values = {one["device"]: one.get("values") for one in run_compute(python) if "device" in one}
    assert values == {f"cuda:{gpu.index}": [[3.0] * 3] * 2 for gpu in gpus}


def test_deep_verify_measures_every_gpu(gpus: tuple[Gpu, ...], python: str) -> None:
    lines = run_compute(python, is_deep=True)
    found = {one["measure"]: one.get("value") or 0 for one in lines if "measure" in one}
    for gpu in gpus:
        assert found[f"matmul cuda:{gpu.index}"] > 1
        assert found[f"memory cuda:{gpu.index}"] > 1


def run_compute(python: str, *, is_deep: bool = False) -> list[dict[str, Any]]:
    """Runs the probe of `cluster verify` that computes; returns the lines that it prints."""
    order = {"framework": "pytorch", "is_deep": is_deep}
    lines = ([("compute", read_program("probes/compute.py"))], order)
    given = "".join(f"{json.dumps(line)}\n" for line in lines)
    done = subprocess.run([python, "-c", LOADER], input=given, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


# -- ranks -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def agent() -> Iterator[NodeAgent]:
    with run_agent(train=TORCHRUN) as running:
        yield running


def environment(**more: str) -> dict[str, str]:
    return {**{name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ}, **more}


def start_ranks(agent: NodeAgent, python: str, count: int, program: str) -> None:
    """Starts a program under torchrun (process 0), as processes 1 to `count`, in the order of their ranks."""
    engine = ENGINES["torchrun"]
    settings = HostSettings(user="", port=22, python=python, code_dir=str(REPOSITORY), cwd="", command=(), tree="")
    launched = {"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": str(count)}
    launched |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    words = engine.launcher_words(settings, launched, shim_words(engine.variables, python=python))
    agent.start(*words, role="launcher", env=environment())
    for _ in range(count):
        rank = agent.read_until(Announced)
        number = int(rank.launched["RANK"]) + 1
        agent.start(python, "-c", program, p=number, shim=rank.shim, launched=rank.launched, env=environment())


def run_ranks(agent: NodeAgent, python: str, count: int, program: str) -> dict[int, int]:
    """Runs a program in that way; returns the exit codes of its processes."""
    start_ranks(agent, python, count, program)
    agent.read_until(Exited, 0)
    return {one.p: one.exit_code for one in agent.messages if isinstance(one, Exited) and one.p}


def test_torchrun_and_nccl(gpus: tuple[Gpu, ...], python: str, agent: NodeAgent) -> None:
    """One rank for each GPU; each prints the sum of all."""
    codes = run_ranks(agent, python, len(gpus), NCCL_SUM)
    assert codes == {number + 1: 0 for number in range(len(gpus))}, agent.messages
    output = sorted(line for number in codes for line in agent.lines(number) if line.startswith("sum "))
    assert output == sorted(f"sum {len(gpus)} on {gpu.index}" for gpu in gpus)


def test_the_rank_that_has_not_entered_a_collective_is_named(
    gpus: tuple[Gpu, ...], python: str, agent: NodeAgent
) -> None:
    """By PyTorch's flight recorder, in a second all_reduce that the last of the ranks does not enter."""
    version = subprocess.run([python, "-c", HAS_CUDA], capture_output=True, text=True, check=True).stdout
    if tuple(map(int, version.split(".")[:2])) < (2, 12):
        pytest.skip(f"PyTorch {version.strip()} does not record by itself")
    start_ranks(agent, python, len(gpus), WAITS_IN_NCCL)
    locations = {}
    for number in range(1, len(gpus) + 1):
        while agent.read_line(number) != "waits":
            pass
        agent.send(TakeStack(number, recorder=True))
        locations[f"rank {number - 1}"] = agent.read_until(Placed, number).location
    *others, (late,) = [location.collectives or () for location in locations.values()]
    assert (late.entered, late.number) == (1, 0)
    assert [(one.entered, one.number, one.call) for (one,) in others] == [(2, 2, "all_reduce of 5x3")] * len(others)
    lines = list_collectives(locations)
    assert len(lines) == bool(others)
    assert all(f"{list(locations)[-1]} is at an earlier one" in line for line in lines)
    left = glob.glob(f"{os.path.dirname(agent.socket)}/pipes/*")
    assert left
    agent.end()
    assert not any(map(os.path.exists, left))


def test_a_rank_that_runs_out_of_memory(python: str, agent: NodeAgent) -> None:
    agent.start(python, "-c", TOO_MUCH, env=environment())
    assert agent.read_until(Exited) == Exited(p=0, exit_code=1)
    assert "out of memory" in " ".join(agent.lines())


@pytest.mark.parametrize("by", ["kill -9", "the agent"])
def test_a_rank_ends_while_its_kernel_runs(by: str, python: str, agent: NodeAgent) -> None:
    """Its memory is free afterwards."""
    before = used_mib()
    agent.start(python, "-c", KERNEL_RUNS, env=environment())
    pid = agent.read_until(Started).pid
    while agent.read_line() != "runs":
        pass  # a warning of PyTorch's
    assert used_mib() >= before + 1024
    if by == "the agent":
        assert not agent.end().left
    else:
        os.kill(pid, signal.SIGKILL)
        assert agent.read_until(Exited) == Exited(p=0, exit_code=137, signal=9)
    until(lambda: used_mib() < before + 512, f"{before} MiB before, {used_mib()} MiB after", timeout_s=30)


def test_each_worker_sees_its_gpus(gpus: tuple[Gpu, ...], python: str, agent: NodeAgent) -> None:
    """CUDA_VISIBLE_DEVICES as the supervisor sets it for two workers of an MXNet job; one where there is one GPU."""
    shares = share_gpus(len(gpus), 2) or share_gpus(len(gpus), 1)
    for number, share in enumerate(shares):
        env = environment(CUDA_VISIBLE_DEVICES=",".join(map(str, share)))
        agent.start(python, "-c", SEEN, p=number, env=env)
        assert agent.read_until(Exited, number).exit_code == 0, agent.lines(number)
        seen = agent.lines(number)[-1].split()
        assert [f"GPU-{uuid}" for uuid in seen] == [gpus[index].uuid for index in share]
