"""The tutorial, typed as it is printed."""

import re
import shlex
import textwrap

import pytest

from ec2_sandbox.paths import find_leftovers, paths_of
from project import REPOSITORY, Project

pytestmark = pytest.mark.sandbox


def choose_tabs(text: str, library: str) -> str:
    """The page with one of several tabs each: the library's, or else the first."""

    def choose(found: re.Match[str]) -> str:
        _, *parts = re.split(r"^\*\*(.+)\*\*\n", found[1], flags=re.MULTILINE)
        tabs = dict(zip(parts[::2], parts[1::2], strict=True))
        return tabs.get(library, parts[1])

    return re.sub(r"^<!-- tabs -->\n(.*?)^<!-- end -->\n", choose, text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["MXNet", "PyTorch"])
def test_the_tutorial_works_as_printed(
    library: str, project: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    project.env["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))  # the folder is sent to the nodes
    whole = choose_tabs((REPOSITORY / "docs" / "tutorial.md").read_text(), library)
    typed, on_aws, _ = whole.partition("## On AWS")
    assert on_aws
    script = re.search(r"^    import argparse\n.*?(?=^\S)", typed, re.MULTILINE | re.DOTALL)
    assert script is not None
    (project.directory / "own.py").write_text(textwrap.dedent(script[0]))
    (project.directory / "cluster.toml").unlink()
    commands = re.findall(r"^    cluster (.+)$", typed, re.MULTILINE)  # those printed by others are indented further
    output = {words.split()[0]: project.run(*shlex.split(words)) for words in commands}
    assert list(output) == ["init", "up", "train", "results", "down", "sandbox"]
    files, job, *ending = output["train"].stderr.splitlines()  # two lines before the job's output
    assert (files.split(":")[0].strip(), job[:4]) == ("files for the job", "job ")
    assert not any(line.startswith("!!") for line in ending)
    assert job.split()[1].rstrip(":") + ": done" in " ".join(ending)
    epochs = re.findall(r"^\[worker (\d) node-\d\] epoch 2: worker \1 of 2, loss", output["train"].stdout, re.MULTILINE)
    assert sorted(epochs) == ["0", "1"], output["train"].stdout
    assert re.search(
        r"^1 new file on node-\d, below \S+; to copy them:\n    cluster results \S+$",
        output["train"].stderr,
        re.MULTILINE,
    )
    assert (project.directory / "model" / "model.params").stat().st_size > 20 * 10 * 4
    assert re.search(r"left +nothing", output["down"].stdout)
    assert not find_leftovers(paths_of(project.directory))
