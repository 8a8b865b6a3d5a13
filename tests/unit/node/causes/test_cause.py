"""The cause of a process's failure, from recorded lines of programs and of kernels."""

import os
from types import SimpleNamespace

import pytest

from node.agent.clues import choose_lines, count_oom_kills, is_full
from node.causes.cause import BEGIN, find_cause, is_of_peer
from node.setup import process_tree
from node.wire import Clues

OOM = "[43907.170385] {}: Killed process 7982 (python3) total-vm:221356kB, anon-rss:12884901kB, file-rss:6676kB"
OOM_NODE = OOM.format("Out of memory")
OOM_GROUP = OOM.format("Memory cgroup out of memory")
XID_79 = "[100.5] NVRM: Xid (PCI:0000:65:00): 79, pid=1234, name=python, GPU has fallen off the bus."
XID_31 = "[100.5] NVRM: Xid (PCI:0000:0a:00): 31, pid=1332, name=python, Ch 00000010, intr 00000000. MMU Fault"
XID_45 = "[100.6] NVRM: Xid (PCI:0000:0a:00): 45, pid='<unknown>', name=<unknown>, Ch 00000008"
TRAP = "[9.1] traps: python3[77] trap invalid opcode ip:7f1a sp:7ffc error:0 in libfast.so[7f10+1000]"
ILLEGAL = "RuntimeError: CUDA error: an illegal memory access was encountered"
KILLED = "RuntimeError: DataLoader worker (pid 18465) is killed by signal: Killed. "
EXITED = "RuntimeError: DataLoader worker (pid(s) 18465) exited unexpectedly"
GLOO = "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.5]:28048"
FULL = "OSError: [Errno 28] No space left on device"
TORCH_FULL = "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"


@pytest.mark.parametrize(
    ("code", "lines", "clues", "words"),
    [
        (137, [], Clues((OOM_NODE,), 1), "OOM killer ended process 7982 (python3), which used 12.3 GiB: the node's"),
        (137, [], Clues((OOM_GROUP,), None), "the limit of its control group was reached"),
        (137, [], Clues((), 2), "ended a process (its name, in the kernel's log, needs root): the node's"),
        (137, [], Clues((OOM_NODE,), 0), "not by the kernel's OOM killer"),  # of another job, some seconds before
        (137, [], Clues(), "unless somebody did it"),
        (1, [BEGIN, KILLED, BEGIN, EXITED], Clues((OOM_NODE,), 1), "OOM killer ended process 7982"),
        (1, [BEGIN, KILLED, BEGIN, EXITED], Clues(oom_kills=0), "a data loader's process was killed"),
        (1, [BEGIN, "KeyError: 'x'"], Clues((OOM_NODE,), 1), "OOM killer"),
        (135, [], Clues(shm_full=True), "/dev/shm is full"),
        (1, [BEGIN, FULL], Clues(shm_full=True), "/dev/shm is full"),
        (135, [], Clues(), "a mapped file was cut short"),
        (132, [], Clues((TRAP,)), "another build of it (in libfast.so)"),
        (139, [], Clues(), "PYTHONFAULTHANDLER"),
        (1, [BEGIN, ILLEGAL], Clues((XID_31, XID_45)), "the kernel reports Xid 31 (0000:0a:00): pid=1332"),
        (1, [BEGIN, ILLEGAL], Clues((XID_79,)), "Xid 79 (0000:65:00): fell off the bus: not the program's fault"),
        (1, [BEGIN, FULL], Clues((XID_79,)), "a disk is full"),
        (1, [BEGIN, FULL, "", BEGIN, TORCH_FULL], Clues(), "as on a full disk"),
        (1, ["epoch 1 loss=nan", BEGIN, "KeyError: 'x'"], Clues(), None),
        (1, [BEGIN, GLOO], Clues(), "another rank has ended"),
        (127, ["sh: 1: pip: not found"], Clues(), "has no pip"),
        (127, [], Clues(), "does not find the command"),
        (3, ["done"], Clues(), None),
    ],
)
def test_the_cause(code: int, lines: list[str], clues: Clues, words: str | None) -> None:
    cause = find_cause(lines, code, clues)
    assert (cause is None) == (words is None)
    assert (words or "") in (cause or "")
    assert "\n" not in (cause or "")


@pytest.mark.parametrize(
    ("code", "words"), [(135, "`[container] shm_size`"), (127, "the image does not have"), (126, "in the image")]
)
def test_the_cause_in_a_container(code: int, words: str) -> None:
    assert words in str(find_cause([], code, Clues(), contained=True))


@pytest.mark.parametrize(("lines", "expected"), [([GLOO], True), ([FULL, GLOO], False), ([], False)])
def test_a_complaint_about_another_rank(lines: list[str], *, expected: bool) -> None:
    assert is_of_peer(lines) is expected


@pytest.mark.parametrize(("since", "chosen"), [(0.0, [OOM_GROUP, XID_31, OOM_NODE]), (101.0, [OOM_GROUP, OOM_NODE])])
def test_lines_of_the_kernels_log(since: float, chosen: list[str]) -> None:
    log = f"[1.0] EXT4-fs (loop9): mounted\n{OOM_GROUP}\n{XID_31}\n\n{OOM_NODE}"
    assert choose_lines(log, since) == tuple(chosen)


def test_what_a_host_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tree, "read", lambda *_: b"pgfault 7\noom_kill 3\n")
    assert count_oom_kills() == 3
    for free, full in ((0, True), (4, True), (50, False)):
        monkeypatch.setattr(os, "statvfs", lambda _, free=free: SimpleNamespace(f_bavail=free, f_blocks=100))
        assert is_full("/dev/shm") is full
