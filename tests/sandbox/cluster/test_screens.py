"""Every screen at a terminal of 80 columns: no word is broken, and no line is cut."""

import re
from collections.abc import Iterator

import pytest

from project import Project

pytestmark = pytest.mark.sandbox

JOB_LINE = re.compile(r"\[(worker|server|scheduler|launcher|setup|supervisor) ")  # a program's output is not changed
OWN_SCRIPT = "import sys\nprint('arguments', sys.argv[1:])\nsys.exit(3)\n"


@pytest.fixture(scope="module")
def with_data(two_nodes: Project) -> Iterator[Project]:
    """Yields the cluster, with the digits in a bucket, and a script that fails."""
    script = two_nodes.directory / "fails.py"
    script.write_text(OWN_SCRIPT)
    two_nodes.run("data", "demo", "demo-data")
    two_nodes.run("data", "put", "--create-bucket", "demo-data/", "s3://cluster-demo/digits/")
    yield two_nodes
    script.unlink()


def show(project: Project, *words: str, typed: str = "") -> tuple[int, str]:
    """Runs a command at a terminal of 80 columns. Returns its exit code and all that it showed.

    Fails if the terminal had to break a line that could have been wrapped between words.
    """
    code, text, _, broken = project.run_at_terminal(*words, typed=typed, term="xterm")
    assert [row for row in broken if not JOB_LINE.match(row) and " " in row.strip()] == []
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    assert "..." not in re.sub(r"\S*\.\.\.\S* *\]?|\[\S+ *\.\.\.\]|SOURCE\.\.\.|PATH\.\.\.", "", text)
    return code, text


@pytest.mark.parametrize(
    ("words", "code", "shown"),
    [
        ("status", 0, "simulated"),
        ("up --dry-run --nodes 9", 0, "per hour (9 x"),
        pytest.param("verify", 0, "ones((2,3))*2+1 == 3", marks=pytest.mark.slow),
        ("oracle g5.xlarge", 0, "sm_86"),
        ("data ls s3://cluster-demo/digits/", 0, "train-images-idx3-ubyte"),
        ("train --kv-store local -n 1 -- echo Epoch[0]", 0, "done"),
        ("logs --role worker", 0, "Epoch[0]"),
        ("train --kv-store local -n 1 fails.py --epochs 1", 3, "exit code 3"),
        ("data put nothing s3://cluster-demo/x/", 1, "nothing"),
    ],
)
def test_a_screen_fits(with_data: Project, words: str, code: int, shown: str) -> None:
    found, text = show(with_data, *words.split())
    assert found == code, text
    assert shown in text


def test_a_prompt_explains_its_keys_and_what_enter_does(with_data: Project) -> None:
    code, text = show(with_data, "data", "put", "--delete", "demo-data/train/", "s3://cluster-demo/digits/", typed="\n")
    assert code == 1
    assert "[y: yes; n or Enter: no]" in text
    assert "nothing was changed" in text


@pytest.mark.parametrize("words", ["ssh-config", "sandbox env"])
def test_what_people_copy_is_not_wrapped(with_data: Project, words: str) -> None:
    shown = with_data.run_at_terminal(*words.split())
    assert with_data.run(*words.split()).stdout.replace("\n", "\r\n") in shown.raw
