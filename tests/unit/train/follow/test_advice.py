"""Every known mistake is recognised in lines that programs really print, and in no others."""

import tomllib
from pathlib import Path

import pytest

from job_events import line
from node.causes.mistakes import Mistake, read_mistakes
from train.follow.advice import Advisor

SAMPLES = tomllib.loads(Path(__file__).with_name("mistakes.toml").read_text())
LINES: dict[str, str] = SAMPLES["lines"]
OTHERS: dict[str, str] = SAMPLES["others"]
HTTP_ERROR = "<Error><Code>{}</Code><Message>...</Message></Error>"


def find_entry(needle: str) -> Mistake:
    return next(mistake for mistake in read_mistakes() if needle in mistake.needles)


OF_OTHER_VERSIONS = [
    (
        "No module named",
        "python3: Error while finding module specification for 'a.b' (ModuleNotFoundError: No module named 'a')",
    ),
    ("CURLE_OK:", "Error: Check failed: curl_easy_perform(curl) == CURLE_OK: Failed to connect to 127.0.0.1 port 1"),
    ("[Errno -", "socket.gaierror: [Errno -3] Temporary failure in name resolution"),
    ("[Errno -", "urllib.error.URLError: <urlopen error [Errno -2] Name or service not known>"),
]


@pytest.mark.parametrize(("needle", "sample"), [*LINES.items(), *OF_OTHER_VERSIONS])
def test_a_known_mistake_gets_its_own_advice(needle: str, sample: str) -> None:
    entry = find_entry(needle)
    advice = Advisor().take(line(sample))
    assert advice == entry.advice.format(**(entry.find_groups(sample) or {}))
    assert "{" not in advice
    assert "\n" not in advice


@pytest.mark.parametrize("needle", OTHERS)
def test_a_line_with_the_needle_may_be_none(needle: str) -> None:
    assert needle in OTHERS[needle]
    assert find_entry(needle).find_groups(OTHERS[needle]) is None


def test_every_entry_has_its_sample() -> None:
    needles = [needle for mistake in read_mistakes() for needle in mistake.needles]
    assert sorted(needles) == sorted(LINES), "each mistake needs a line of output in mistakes.toml"


@pytest.mark.parametrize(
    "text",
    [
        "INFO:root:Epoch[0] Batch [0-10]\tSpeed: 12120.08 samples/sec\taccuracy=1.000000\tcross-entropy=0.000000",
        "Epoch[3] Validation-accuracy=0.97",
        "src/operator/nn/./cudnn/./cudnn_algoreg-inl.h:97: Running performance tests (set MXNET_CUDNN_AUTOTUNE_DEFAULT",
        "UserWarning: Failed to load image Python extension: 'libpng16.so.16: cannot open shared object file: No such'",
        "UserWarning: Plan failed with an OutOfMemoryError: CUDA out of memory. Tried to allocate 1.2 GiB",
        "saved banana.params, finances: nan-free",
        "[10:00:00] src/van.cc:75: Bind to role=worker, ip=10.0.0.4, port=4711, is_recovery=0",
        "[08:03:39] src/io/s3_filesys.cc:1185: No AWS Region set, using default region us-east-1.",
    ],
)
def test_ordinary_output_gets_no_advice(text: str) -> None:
    assert Advisor().take(line(text)) is None


def test_each_advice_is_given_once() -> None:
    advisor = Advisor()
    error = "OSError: [Errno 98] Address already in use"
    assert advisor.take(line(error)) is not None
    assert advisor.take(line(f"again: {error}")) is None
    assert advisor.take(line(HTTP_ERROR.format("PermanentRedirect"))) is not None
    assert advisor.take(line(HTTP_ERROR.format("AuthorizationHeaderMalformed"))) is None  # the same advice
    assert advisor.take(line(HTTP_ERROR.format("NoSuchBucket"))) is not None


def test_another_process_gets_no_second_advice_for_the_same_line() -> None:
    """The line also has the words of a full disk."""
    advisor = Advisor()
    error = "RuntimeError: unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)"
    assert "shm_size" in str(advisor.take(line(error)))
    assert advisor.take(line(f"[rank1]: {error}")) is None


def test_braces_in_a_line_are_no_places_of_ours() -> None:
    advice = Advisor().take(line("FileNotFoundError: [Errno 2] No such file or directory: 'a {path} b'"))
    assert advice.startswith("a {path} b ")


def test_a_missing_module_has_one_advice() -> None:
    """The end of the job names as the cause what was shown, not what the head says of a project it does not know."""
    text = "ModuleNotFoundError: No module named 'gluoncv'"
    advisor = Advisor(lambda name: f"add {name}")
    assert advisor.take(line(text)) == "add gluoncv"
    assert advisor.instead == {Advisor().take(line(text)): "add gluoncv"}
