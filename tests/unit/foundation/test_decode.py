"""Decoding in threads, and numbers. The tests of each message's reader check which data is accepted."""

import subprocess
import sys
from typing import Any

import pytest

from foundation.decode import decode

# Without the lock in decode.py, all 60 of 60 runs ended with SIGSEGV.
PROGRAM = """
import sys
from threading import Barrier, Thread
from typing import Annotated, Optional
import msgspec
from foundation import decode

sys.setswitchinterval(1e-6)
fields = [(f"f{number}", Optional[Annotated[str, msgspec.Meta(max_length=10)]], None) for number in range(60)]
Inner = msgspec.defstruct("Inner", fields)
Outer = msgspec.defstruct("Outer", [("inner", Inner), ("inners", list[Inner]), *fields])
data = {"f1": "x", "inner": {"f58": "y"}, "inners": [{"f57": "z"}]}
at_once = Barrier(8)

def use():
    at_once.wait()
    for _ in range(20):
        found = WAY
        assert (found.f1, found.inner.f58, found.inners[0].f57) == ("x", "y", "z")

threads = [Thread(target=use) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("done")
"""


@pytest.mark.parametrize("way", ["decode.decode(msgspec.json.encode(data), Outer)", "decode.convert(data, Outer)"])
def test_threads_use_a_type_for_the_first_time_at_once(way: str) -> None:
    program = PROGRAM.replace("WAY", way)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.parametrize("number", ["1e999", "-1e999", "Infinity", "NaN"])
@pytest.mark.parametrize("text", ["x", r"\udc80"])  # a lone surrogate needs Python's own parser
def test_numbers_that_are_not_finite_are_rejected(number: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        decode(f'["{text}", {number}]'.encode(), list[Any])
