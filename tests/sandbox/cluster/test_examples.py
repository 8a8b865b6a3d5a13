"""The examples, typed as their READMEs print them, all on one cluster. The last two commands end it."""

import re
import shlex
import shutil
from collections.abc import Iterator

import pytest

from ec2_sandbox.paths import find_leftovers, paths_of
from project import REPOSITORY, Project, project_in

pytestmark = pytest.mark.sandbox

EXAMPLES = REPOSITORY / "examples"
ENDS = ["cluster down", "cluster sandbox stop"]


def commands_of(readme: str) -> list[str]:
    return re.findall(r"^    (cluster .+)$", readme, re.MULTILINE)


def promised_by(readme: str) -> list[str]:
    """Returns a pattern for each line of output in the README; nodes and accuracies differ from run to run."""
    lines = map(re.escape, re.findall(r"^    (\[worker .+)$", readme, re.MULTILINE))
    patterns = (re.sub(r"node\\-\d", r"node-\\d", line) for line in lines)
    return [re.sub(r"(accuracy\\ )0\\\.\d+", r"\1(?:0\\.9\\d|1\\.00)", pattern) for pattern in patterns]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Yields a folder for all examples, in turn: the sandbox and the cluster stay, since all have the same name."""
    with project_in(tmp_path_factory.mktemp("examples")) as project:
        project.env["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))  # the folder is sent to the nodes
        yield project
        receipt, _ = (project.run(*shlex.split(command)[1:], "--yes").stdout for command in ENDS)
        assert re.search(r"left +nothing", receipt)
        assert not find_leftovers(paths_of(project.directory))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(readme.parent.name for readme in EXAMPLES.glob("*/README.md")))
def test_an_example_works_as_printed(shared: Project, name: str) -> None:
    """What its README says that the workers print."""
    shutil.rmtree(shared.directory)
    shutil.copytree(EXAMPLES / name, shared.directory)
    readme = (EXAMPLES / name / "README.md").read_text()
    *typed, down, stop = commands_of(readme)
    assert [down, stop] == ENDS
    printed = "".join(shared.run(*shlex.split(command)[1:]).stdout for command in typed)
    promises = promised_by(readme)
    assert promises
    for promise in promises:
        assert re.search(rf"^{promise}$", printed, re.MULTILINE), f"{promise}\n{printed}"
