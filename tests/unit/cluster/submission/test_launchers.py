"""Launchers in a job's command: what the job's own launcher does instead, and what is refused."""

from contextlib import nullcontext
from typing import Any

import pytest

from cluster.submission.launchers import replace_launcher
from foundation.errors import UsageError

RANK = "=$CLUSTER_LOCAL_RANK"
MPI = {"launcher": "mpi", "kv_store": "none"}


@pytest.mark.parametrize(
    ("line", "command", "settings"),
    [
        ("torchrun x.py", "python x.py", {}),
        ("torchrun --nproc_per_node=2 x.py --lr 1", "python x.py --lr 1", {"processes": 2, "workers": "auto"}),
        ("torchrun --standalone x.py", "python x.py", {"nodes": 1}),
        ("torchrun --nnodes 2 --node_rank 0 --master_addr h --master_port 1 x.py", "python x.py", {"nodes": 2}),
        ("torchrun --nnodes=1:4 --max_restarts=3 x.py", "python x.py", {"nodes": "1..", "restarts_on_error": 3}),
        ("torchrun --no_python ./prog --help", "./prog --help", {}),
        ("torchrun -m pkg.train --lr 1", "python -m pkg.train --lr 1", {}),
        ("/opt/e/bin/torchrun -- x.py --nproc_per_node 3", "python x.py --nproc_per_node 3", {}),
        ("python3 -m torch.distributed.run x.py", "python3 x.py", {}),
        ("python -u -m torch.distributed.launch x.py -a", f"python x.py --local-rank{RANK} -a", {}),
        ("accelerate launch x.py", "python x.py", {}),
        (
            "accelerate launch --multi_gpu --num_machines 2 --num_processes 8 --machine_rank 0 x.py --lr 1",
            "python x.py --lr 1",
            {"nodes": 2, "workers": 8, "processes": "auto"},
        ),
        (
            "accelerate launch --cpu --mixed_precision bf16 x.py",
            "python x.py",
            {"env": {"ACCELERATE_USE_CPU": "true", "ACCELERATE_MIXED_PRECISION": "bf16"}},
        ),
        ("deepspeed --num_gpus=2 x.py --deepspeed ds.json", f"python x.py --local_rank{RANK} --deepspeed ds.json",
         {"processes": 2, "workers": "auto"}),
        ("mpirun -np 2 python x.py", "python x.py", {"workers": 2, "processes": "auto", **MPI}),
        ("mpiexec -n 3 ./prog", "./prog", {"workers": 3, "processes": "auto", **MPI}),
        ("torchrun --help", None, {}),
        ("accelerate env", None, {}),
    ],
)  # fmt: skip
def test_what_replaces_a_launcher(line: str, command: str | None, settings: dict[str, Any]) -> None:
    found = replace_launcher(line.split(), launcher="torchrun")
    assert (found and " ".join(found.command)) == command
    assert (dict(found.settings) if found else {}) == settings
    if "$" not in line:  # in one word, "torchrun x.py" is a line for the shell
        assert replace_launcher(("bash", "-c", line), launcher="torchrun") == found


@pytest.mark.parametrize(("launcher", "instead"), [("torchrun", None), ("env", None), ("ssh", "env"), ("local", "env")])
def test_the_launcher_that_takes_over(launcher: str, instead: str | None) -> None:
    """Engines of MXNet do not set RANK."""
    found = replace_launcher(("torchrun", "x.py"), launcher=launcher)
    assert found is not None
    assert found.settings.get("launcher") == instead


@pytest.mark.parametrize(
    ("command", "message", "hint"),
    [
        ("torchrun --nproc_per_node=cpu x.py", "torchrun --nproc_per_node=cpu: a job starts", "-- python SCRIPT"),
        ("torchrun --new-option 1 x.py", "torchrun --new-option: a job starts", "cluster train -- python SCRIPT"),
        (
            "mpirun -np 2 -H a:1,b:1 python x.py",
            "mpirun -H:",
            "[-H FILE] --launcher mpi --kv-store none -n N -- PROGRAM",
        ),
        ("mpirun.openmpi -H a:1 x", "mpirun.openmpi -H:", "--launcher mpi --kv-store none -n N -- PROGRAM"),
        ("mpirun -np 2 -x SECRET python x.py", "mpirun -x SECRET: the value", "cluster train --env SECRET -- mpirun"),
    ],
)
def test_words_without_an_equivalent_are_refused(command: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}") as raised:
        replace_launcher(command.split(), launcher="torchrun")
    assert hint in (raised.value.hint or "")


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("cd a && torchrun --nproc_per_node=2 x.py", "torchrun"),
        ("A=$B accelerate  launch x.py", "accelerate launch"),
        ("exec torchrun x.py", "torchrun"),
        ("cd a && orterun -np 2 x", "orterun"),
        ("cd a && accelerate-launch x.py", "accelerate-launch"),
        ("(python3 -m torch.distributed.run x.py)", "python3 -m torch.distributed.run"),
        ('torchrun --nnodes=2 --node_rank="$RANK" --master_addr=$MASTER_ADDR x.py', None),
        ("python x.py --launcher=deepspeed --amp", None),
        ("python x.py --exec mpirun a", None),
    ],
)
def test_launchers_in_shell_lines(line: str, name: str | None) -> None:
    """One that gets the place of its process starts one job; any other would start one for each process."""
    refused = pytest.raises(UsageError, match=f"^{name} inside a shell line would start a separate job")
    with nullcontext() if name is None else refused:
        assert replace_launcher(("sh", "-c", line), launcher="env") is None
