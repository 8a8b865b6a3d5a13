"""Where a Python program is, as py-spy finds it."""

import pytest

from node.job.stacks import Frame, find_place

MAIN = Frame("<module>", "/jobs/1/work/train.py", 11, "train.py")
REDUCE = Frame("all_reduce", "/e/lib/python3.11/site-packages/torch/c10d.py", 3, "torch/distributed/c10d.py")
IMPORT = Frame("_find_and_load", "<frozen importlib._bootstrap>", 5)
DELETE = Frame("KVStore.__del__", "/e/lib/python3.11/site-packages/mxnet/kvstore.py", 73, "mxnet/kvstore.py")


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        ((), ""),
        ((MAIN,), "train.py:11"),
        ((REDUCE, MAIN), "train.py:11 (all_reduce)"),
        ((REDUCE, Frame("step", "/w/my/steps.py", 7, "my/steps.py"), MAIN), "my/steps.py:7 (all_reduce)"),
        ((IMPORT, MAIN), "train.py:11 (_find_and_load)"),
        ((Frame("<module>", "/usr/lib/python3/runpy.py", 2, "runpy.py"),), "runpy.py:2"),
        ((REDUCE, Frame("<module>", "<string>", 4)), "<string>:4 (all_reduce)"),
        ((Frame("<module>", "/w/\x1b.py", 2, "\x1b.py"),), "?.py:2"),
        ((DELETE,), "the end of the program (KVStore.__del__)"),
    ],
)
def test_the_programs_own_line_and_what_it_calls(frames: tuple[Frame, ...], place: str) -> None:
    assert find_place(frames).text == place
