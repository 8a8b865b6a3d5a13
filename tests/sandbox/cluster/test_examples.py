"""The examples, typed as their READMEs print them, all on one cluster. The last two commands end it."""

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

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


def run_example(project: Project, name: str) -> dict[str, str]:
    """Returns what each command of the README, except the last two, printed on stdout, in their order."""
    shutil.rmtree(project.directory)
    shutil.copytree(EXAMPLES / name, project.directory)
    readme = (EXAMPLES / name / "README.md").read_text()
    *typed, down, stop = commands_of(readme)
    assert [down, stop] == ENDS
    output = {command: project.run(*shlex.split(command)[1:]).stdout for command in typed}
    printed = "".join(output.values())
    promises = promised_by(readme)
    assert promises
    for promise in promises:
        assert re.search(rf"^{promise}$", printed, re.MULTILINE), f"{promise}\n{printed}"
    return output


def test_every_example_is_run_here() -> None:
    tested = re.findall(r'run_example\(shared, "(.+)"\)', Path(__file__).read_text())
    assert sorted(tested) == sorted(readme.parent.name for readme in EXAMPLES.glob("*/README.md"))


@pytest.mark.slow
def test_own_script(shared: Project) -> None:
    output = run_example(shared, "own-script")
    assert "epoch 4: worker 1 of 2" in output["cluster train"]
    with_arguments = output["cluster train train.py --epochs 2 --hidden 64"]
    assert "epoch 1: worker 0 of 2" in with_arguments
    assert "epoch 2:" not in with_arguments
    # Two layers, of 64 and of 4, in float32.
    assert (shared.directory / "weights" / "quadrants.params").stat().st_size > 4 * (2 * 64 + 64 + 64 * 4 + 4)


@pytest.mark.slow
def test_digits_from_s3(shared: Project) -> None:
    output = run_example(shared, "digits-from-s3")
    info = output["cluster data info s3://cluster-examples/digits/train/ --workers 2"]
    read = re.findall(r"^worker [01] +(\d+) records", info, re.MULTILINE)
    assert sum(map(int, read)) == 1500
    assert (shared.directory / "digits" / "val").is_dir()


@pytest.mark.slow
def test_own_requirements(shared: Project) -> None:
    output = run_example(shared, "own-requirements")
    (versions,) = (words for command, words in output.items() if command.startswith("cluster exec"))
    nodes = dict(re.findall(r"^\[(node-\d)\] ([\d.]+)$", versions, re.MULTILINE))
    assert sorted(nodes) == ["node-0", "node-1"]
    assert len(set(nodes.values())) == 1


@pytest.mark.slow
def test_checkpoints(shared: Project) -> None:
    output = run_example(shared, "checkpoints")
    first, resumed = output["cluster train -- --num-epochs 2"], output["cluster train -- --num-epochs 4"]
    assert "Epoch[1] Validation-accuracy" in first
    assert "/output/s3/cluster-examples/model/mlp-0002.params" in resumed
    assert "Epoch[1]" not in resumed
    assert "Epoch[3] Validation-accuracy" in resumed
    model = {path.name for path in (shared.directory / "model").iterdir()}
    assert {"mlp-0004.params", "mlp-symbol.json"} <= model
