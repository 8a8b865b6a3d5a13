"""The tutorial, typed as it is printed."""

import re
import shlex
import textwrap

import pytest

from project import REPOSITORY, Project
from sandbox.place import find_leftovers, place_of

pytestmark = pytest.mark.sandbox


@pytest.mark.slow
def test_the_tutorial_works_as_printed(project: Project, tmp_path_factory: pytest.TempPathFactory) -> None:
    project.env["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))  # the folder is sent to the nodes
    whole = (REPOSITORY / "docs" / "tutorial.md").read_text()
    typed, on_aws, _ = whole.partition("## On AWS")
    assert on_aws
    script = re.search(r"^    import argparse\n.*?(?=^\S)", typed, re.MULTILINE | re.DOTALL)
    assert script is not None
    (project.directory / "own.py").write_text(textwrap.dedent(script[0]))
    (project.directory / "cluster.toml").unlink()
    commands = re.findall(r"^    cluster (.+)$", typed, re.MULTILINE)  # those printed by others are indented further
    said = {words.split()[0]: project.run(*shlex.split(words)) for words in commands}
    assert list(said) == ["init", "up", "train", "results", "down", "sandbox"]
    files, job, *ending = said["train"].stderr.splitlines()  # two lines before the job's output
    assert (files.split(":")[0].strip(), job[:4]) == ("files for the job", "job ")
    assert not any(line.startswith("!!") for line in ending)
    assert job.split()[1].rstrip(":") + ": done" in " ".join(ending)
    epochs = re.findall(r"^\[worker (\d) node-\d\] epoch 2: worker \1 of 2, loss", said["train"].stdout, re.MULTILINE)
    assert sorted(epochs) == ["0", "1"], said["train"].stdout
    assert re.search(
        r"^1 new file on node-\d, below \S+; to copy them:\n    cluster results \S+$",
        said["train"].stderr,
        re.MULTILINE,
    )
    assert (project.directory / "model" / "model.params").stat().st_size > 20 * 10 * 4
    assert re.search(r"left +nothing", said["down"].stdout)
    assert not find_leftovers(place_of(project.directory))
