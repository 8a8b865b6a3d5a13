"""What PyTorch's flight recorder says of a process: files that three ranks of PyTorch 2.13.0 with Gloo have written.

A thread here answers the pipe as a thread of NCCL's process group does; tests/gpu has NCCL itself.
"""

import asyncio
import base64
import os
import pickle
import select
import threading
import tomllib
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from node.agent import flight_recorder
from node.agent.flight_recorder import Entry, Recorder, find_collectives, load
from node.job.stacks import Collective, Location, list_collectives

RECORDED = tomllib.loads((Path(__file__).parent / "recorded/gloo.toml").read_text())
IN_4 = Collective(group="0 (default_pg)", entered=4, number=4, call="all_reduce of 5x3")


def recorded(rank: int) -> bytes:
    return base64.b64decode(RECORDED[f"rank_{rank}"])


def test_the_rank_that_has_not_entered_a_collective_is_named(tmp_path: Path) -> None:
    """All three have reduced 5 x 3 numbers three times; ranks 0 and 1 have a process group, too."""
    for rank in range(3):
        (tmp_path / f"{rank}").write_bytes(recorded(rank))
    found = [find_collectives(load(f"{tmp_path}/{rank}")) for rank in range(3)]
    assert found == [
        (IN_4, Collective(group="1", entered=1)),
        (Collective(group="0 (default_pg)", entered=3), Collective(group="1", entered=1)),
        (IN_4,),
    ]
    locations = {f"worker {rank} on n": Location(collectives=one) for rank, one in enumerate(found)}
    late = (
        "collective 4 of group 0 (default_pg): worker 1 on n is at an earlier one; 2 others wait at all_reduce of 5x3"
    )
    assert list_collectives(locations) == [late]
    (silent,) = list_collectives({**locations, "worker 3 on n": Location()})
    assert "; worker 3 on n is at an unknown one; 2 others wait" in silent
    early = {**locations, "worker 1 on n": Location(collectives=())}  # nothing is recorded there yet
    assert list_collectives(early) == [late]


def test_ranks_in_different_collectives_and_in_the_same() -> None:
    other = Location(collectives=(Collective(group="0 (default_pg)", entered=5, number=4, call="send of 7"),))
    same = {f"worker {rank} on n": Location(collectives=(IN_4,)) for rank in range(8)}
    assert list_collectives({**same, "worker 8 on n": other}) == [
        "collective 4 of group 0 (default_pg): worker 8 on n waits at send of 7; 8 others wait at all_reduce of 5x3"
    ]
    assert list_collectives(same) == ["collective 4 of group 0 (default_pg): all 8 wait at all_reduce of 5x3"]


def entry(number: int, state: str = "scheduled", **more: Any) -> Entry:
    return Entry(("0", "undefined"), number, "nccl:_all_gather_base", state, input_sizes=[[], [2]], **more)


def test_the_first_collective_that_is_not_finished() -> None:
    """Those that were recorded before a finished one are, too, and messages between two ranks do not count."""
    calls = [entry(1), entry(1, "completed"), entry(7, is_p2p=True), entry(2, "started"), entry(3)]
    assert find_collectives(calls) == (Collective(group="0", entered=3, number=2, call="_all_gather_base of 1, 2"),)


def make(tmp_path: Path, number: int) -> Recorder:
    return Recorder(f"{tmp_path}/{number}-", f"{tmp_path}/r-{number}-")


def test_the_variables_unless_the_user_has_them(tmp_path: Path) -> None:
    wanted = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/2-", "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/r-2-"}
    assert make(tmp_path, 2).variables({"A": "1"}) == wanted
    assert make(tmp_path, 2).variables({"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "mine"}) == {}


def answer(tmp_path: Path, *answers: bytes) -> threading.Thread:
    """Makes the pipe of process 2, rank 5, and writes these one after another once something comes out of it."""
    path = tmp_path / "r-2-5"
    os.mkfifo(tmp_path / "2-5.pipe")
    pipe = os.open(tmp_path / "2-5.pipe", os.O_RDONLY | os.O_NONBLOCK)

    def write() -> None:
        select.select([pipe], [], [], 30)
        os.close(pipe)
        for data in answers:
            path.write_bytes(data)

    thread = threading.Thread(target=write)
    thread.start()
    return thread


class Harmful:
    def __reduce__(self) -> Any:
        return os.mkdir, ("harmed",)


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ((recorded(0)[:500], recorded(0)), (IN_4, Collective(group="1", entered=1))),  # a part of it first
        ((pickle.dumps(Harmful()),), None),
        ((pickle.dumps({"entries": 7}),), None),
        ((pickle.dumps({"entries": [to_builtins(entry(1)) | {"collective_seq_id": -1}]}),), None),
        ((), None),  # it never comes
    ],
)
def test_a_process_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answers: tuple[bytes, ...], found: object
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(flight_recorder, "TIMEOUT_S", 10.0 if found else 0.3)
    (tmp_path / "r-2-5").write_bytes(recorded(2))  # of an earlier question
    thread = answer(tmp_path, *answers)
    recorder = make(tmp_path, 2)
    assert (asyncio.run(recorder.read()), recorder.was_written(), recorder.was_written()) == (found, True, False)
    thread.join()
    assert [path.name for path in tmp_path.iterdir()] == ["2-5.pipe"]  # also nothing that the pickle would have made


def test_a_pipe_that_nobody_reads_and_a_link(tmp_path: Path) -> None:
    """The process has ended; or a program in a container has put a link in the pipe's place."""
    assert asyncio.run(make(tmp_path, 2).read()) is None
    os.mkfifo(tmp_path / "2-5.pipe")
    assert asyncio.run(make(tmp_path, 2).read()) is None
    (tmp_path / "victim").write_text("kept")
    (tmp_path / "3-5.pipe").symlink_to(tmp_path / "victim")
    recorder = make(tmp_path, 3)
    assert (asyncio.run(recorder.read()), recorder.was_written()) == (None, False)
    assert (tmp_path / "victim").read_text() == "kept"
