"""The commands of the pages, the tutorial and the examples, typed as they are printed."""

import json
import os
import re
import shlex
import shutil
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from PIL import Image

from container_nodes import PACKAGES as PODMAN
from ec2_sandbox import control
from ec2_sandbox.paths import find_leftovers, paths_of
from foundation.progress import silent
from oci_images import plain_image, write_archive
from own_hosts import make_own_hosts
from project import CLUSTER, REPOSITORY, Project, project_in, shipped
from sandbox_steps import enter, start_sandbox
from waits import until

pytestmark = pytest.mark.sandbox

DOCS = REPOSITORY / "docs"
EXAMPLES = sorted(REPOSITORY.glob("examples/*/README.md"))
SHELL = re.compile(r"(cluster|aws|eval|mkdir|ssh|uv|make|export|salloc|python) \S|# 1\. ")
PAGE_TIMEOUT_S = 600
ELSEWHERE = {  # pages that are typed by other tests, or that only show forms of commands
    "index.md": "the three commands, as in the README",
    "tutorial.md": "below",
    "commands.md": "the reference: test_docs.py compares it with --help",
    **{f"commands/{page.name}": "as commands.md" for page in (DOCS / "commands").glob("*.md")},
    "architecture.md": "for contributors",
    "how-to/notebooks.md": "test_notebook.py",
}
NOT_TYPED = {  # lines
    "make install": "test_installation.py",
    'export PATH="$PWD/.venv/bin:$PATH"': "test_installation.py",
    "uv tool install .": "test_installation.py",
    "make demo        # two nodes, a real dataset, distributed training, clean-up: one minute": "CI",
    "make demo-torch  # the same with PyTorch": "CI",
    "make test        # the tests": "CI",
    "cluster data fetch mnist mnist/": "downloads from the Internet",
    "cluster init --cloud aws --instance-type g5.xlarge": "AWS",
    "cluster list": "AWS",
    "ssh -i key ubuntu@<public or private address>": "with places to fill in",
    "cluster cp node-0:/shared/results/JOB .   # and results from it": "with a place to fill in",
    "cluster image rm NAME       # or its id": "with a place to fill in",
    "python launch.py -n 4 -s 4 -H hosts --launcher ssh python train.py --kv-store dist_sync     # by hand": "not ours",
}
BLOCKS_ELSEWHERE = (
    "# 1. one folder for each of the 1000 classes",  # needs the dataset
    "salloc ",  # no Slurm there
)
PLAIN = 'name = "pages"\ncloud = "sandbox"\n[bootstrap]\nframework = "none"\n[train]\nlauncher = "env"\n'
ADD_ME = """
useradd --create-home --shell /bin/bash me && usermod --password '*' me
install -d -m 700 -o me -g me ~me/.ssh
install -m 600 -o me -g me ~ubuntu/.ssh/authorized_keys ~me/.ssh/authorized_keys
"""
MXNET_SCRIPT = """
import argparse
import mxnet as mx
parser = argparse.ArgumentParser()
parser.add_argument("--kv-store", default="local")
parser.add_argument("--epochs", "--lr", default="1")
parser.add_argument("records", nargs="?")
args = parser.parse_args()
store = mx.kv.create(args.kv_store)
print("trained by", store.rank, "of", store.num_workers)
"""


def find_all_blocks(page: Path) -> list[str]:
    found = re.findall(r"(?:^    .*\n(?:^\n(?=    ))?)+", f"{page.read_text()}\n", re.MULTILINE)
    return [textwrap.dedent(block).strip("\n") for block in found]


def find_blocks(page: Path) -> list[str]:
    """The indented blocks of a page that a reader can type, without NOT_TYPED."""
    kept = (
        "\n".join(line for line in block.splitlines() if line not in NOT_TYPED)
        for block in find_all_blocks(page)
        if SHELL.match(block) and not block.startswith(BLOCKS_ELSEWHERE)
    )
    return [block for block in kept if block]


TORCH_SCRIPT = """
import argparse, os
import torch.distributed
parser = argparse.ArgumentParser()
parser.add_argument("--resume", action="store_true")
parser.add_argument("--epochs", "--lr")
parser.parse_args()
torch.distributed.init_process_group("gloo")
if torch.distributed.get_rank() == 0:
    torch.save({}, os.path.expanduser("~/checkpoint.pt"))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


def write(project: Project, **files: str) -> None:
    for name, text in files.items():
        (project.directory / name.replace("__", ".")).write_text(text)


# --- what a reader of each page has already


def have_the_shipped_file(project: Project) -> None:
    project.write((REPOSITORY / "cluster.toml").read_text())
    project.run("sandbox", "start")
    project.run("data", "demo", "digits")
    project.run("data", "put", "--create-bucket", "digits/", "s3://cluster-demo/digits/")


def have_data(project: Project) -> None:
    project.write(PLAIN)
    project.run("sandbox", "start")
    project.run("data", "demo", "mnist")
    for kind in ("cats", "dogs"):
        folder = project.directory / "photos" / kind
        folder.mkdir(parents=True)
        for number in range(8):
            Image.effect_noise((300, 280), 90 + number).convert("RGB").save(folder / f"{number}.jpg")
    joined = b"".join(path.read_bytes() for path in sorted((project.directory / "mnist").rglob("train/*.rec")))
    (project.directory / "all.rec").write_bytes(joined)
    project.run("data", "put", "--create-bucket", "all.rec", "s3://bucket/old/")


def have_mxnet_nodes(project: Project) -> None:
    have_the_shipped_file(project)
    write(project, train__py=MXNET_SCRIPT, their_script__py=MXNET_SCRIPT, hosts="node-0\nnode-1\n")
    (project.directory / "theirs").mkdir()
    (project.directory / "theirs" / "train.py").write_text(MXNET_SCRIPT)
    project.run("up")


def have_a_lease(project: Project) -> None:
    project.write(f'{PLAIN}[lease]\nlifetime = "2h"\n')
    project.run("up")


def have_a_project(project: Project) -> None:
    write(project, train__py=MXNET_SCRIPT, requirements__txt="pandas\n")
    project.run("data", "demo", "records")
    (project.directory / "records" / "train").rename(project.directory / "shards")
    shutil.rmtree(project.directory / "records")
    (project.directory / "shards").rename(project.directory / "records")


def have_a_torch_script(project: Project) -> None:
    project.write('name = "pages"\n')
    project.run("sandbox", "start")
    project.run("data", "demo", "../mnist")
    project.run("data", "put", "--create-bucket", "../mnist/", "s3://my-bucket/mnist/")
    (project.directory / "cluster.toml").unlink()
    write(project, train__py=TORCH_SCRIPT)


def have_a_script(project: Project) -> None:
    write(project, train__py="print('trained')\n")
    project.write(f'{PLAIN}script = "train.py"\n')
    project.run("up")


def have_a_running_job(project: Project) -> None:
    values = {"script": "train_mnist.py", "results": "s3://my-bucket/results/", "market": "spot"}
    project.write(shipped(**values, args=["--model-prefix", "auto", "--checkpoint-batches", "500"]))
    project.run("up")
    project.run("data", "demo", "digits")
    project.run("data", "put", "--create-bucket", "digits/", "s3://cluster-demo/digits/")
    project.run("data", "put", "--create-bucket", "cluster.toml", "s3://my-bucket/")
    job = project.run("train", "--detach", "--", "--num-epochs", "200").stdout.strip()
    until(lambda: json.loads(project.run("jobs", "--json").stdout)[0]["state"] == "running", f"{job} does not run")


def have_a_volume(project: Project) -> None:
    volume = '[[volumes]]\nmount = "/shared"\nsource = "head"\nsize_gib = 1\n'
    project.write(f'{PLAIN}{volume}[sandbox]\npackages = ["sshfs", "s3fs", "fuse2fs"]\n')
    (project.directory / "mnist").mkdir()
    write(project, **{"mnist/a__rec": "x"})
    project.run("up")


def have_hosts(project: Project) -> None:
    """The page's own settings, and hosts of the names in them; their names and keys are in the user's ssh set-up."""
    sandbox = start_sandbox(project.directory)
    with pytest.MonkeyPatch.context() as monkeypatch:
        enter(sandbox, monkeypatch)
        home = Path(project.env["XDG_STATE_HOME"]) / "home"
        hosts = make_own_hosts(project.directory, {"gpu1": ADD_ME, "gpu2": ""}, home=home)
    project.env |= hosts.project.env
    [settings] = (block for block in find_all_blocks(DOCS / "how-to/existing-hosts.md") if "[hosts]" in block)
    project.write(settings)
    write(project, train__py=MXNET_SCRIPT)


def have_nodes_with_podman(project: Project) -> None:
    write(project, train__py="print('trained')\n")
    container = '[container]\nimage = "localhost/train"\n'
    project.write(f"{PLAIN}{container}[sandbox]\npackages = {json.dumps(PODMAN)}\n")
    project.run("up")
    write_archive(plain_image(), project.directory / "train.tar", "localhost/train:latest")
    project.run("cp", "train.tar", "node-0:")
    project.run("exec", "--node", "node-0", "--", "podman", "load", "--input", "train.tar")


def have_an_example(folder: Path, project: Project) -> None:
    shutil.copytree(folder, project.directory, dirs_exist_ok=True)


PAGES: dict[str, Callable[[Project], None]] = {
    "../README.md": have_the_shipped_file,
    "data.md": have_data,
    "install.md": have_the_shipped_file,
    "sandbox.md": have_mxnet_nodes,
    "scripts.md": have_mxnet_nodes,
    "how-to/existing-hosts.md": have_hosts,
    "how-to/baked-images.md": lambda project: project.write(PLAIN),
    "how-to/containers.md": have_nodes_with_podman,
    "how-to/from-launch-py.md": have_mxnet_nodes,
    "how-to/leases.md": have_a_lease,
    "how-to/own-project.md": have_a_project,
    "how-to/pytorch.md": have_a_torch_script,
    "how-to/reproduce.md": have_a_script,
    "how-to/several-people.md": have_a_script,
    "how-to/survive-interruptions.md": have_a_running_job,
    "how-to/volumes.md": have_a_volume,
    **{f"../examples/{page.parent.name}/README.md": partial(have_an_example, page.parent) for page in EXAMPLES},
}


def find_promises(page: Path) -> list[str]:
    """A pattern for each line of an example's workers; nodes and accuracies differ from run to run."""
    lines = map(re.escape, re.findall(r"^    (\[worker .+)$", page.read_text(), re.MULTILINE))
    patterns = (re.sub(r"node\\-\d", r"node-\\d", line) for line in lines)
    return [re.sub(r"(accuracy\\ )0\\\.\d+", r"\1(?:0\\.9\\d|1\\.00)", pattern) for pattern in patterns]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A folder for all pages, in turn."""
    with project_in(tmp_path_factory.mktemp("pages")) as project:
        project.env["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))  # the folder is sent to the nodes
        yield project
    assert not find_leftovers(paths_of(project.directory))


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_a_pages_commands_work_as_printed(shared: Project, page: str) -> None:
    control.reset(shared.directory, report=silent)
    shared.env = {"XDG_STATE_HOME": shared.env["XDG_STATE_HOME"]}
    for folder in (shared.directory, Path(shared.env["XDG_STATE_HOME"])):
        shutil.rmtree(folder)
        folder.mkdir()
    PAGES[page](shared)
    env = shared.environment()
    env["PATH"] = f"{Path(CLUSTER).parent}{os.pathsep}{env['PATH']}"
    printed = ""
    for block in find_blocks(DOCS / page):
        # A terminal would be asked.
        typed = re.sub(r"^(cluster (?:sandbox (?:stop|reset)|down))\b", r"\1 --yes", block, flags=re.MULTILINE)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", typed],
            cwd=shared.directory, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=PAGE_TIMEOUT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
        assert not re.search(r"^(error|Traceback|warning):?", done.stderr, re.MULTILINE), f"{block}\n{done.stderr}"
        printed += done.stdout
    promises = find_promises(DOCS / page) if "examples" in page else []
    assert [promise for promise in promises if not re.search(f"^{promise}$", printed, re.MULTILINE)] == [], printed


def test_every_page_is_typed() -> None:
    pages = [REPOSITORY / "README.md", *DOCS.rglob("*.md")]
    typed = {(DOCS / page).resolve() for page in (*PAGES, *ELSEWHERE)}
    assert [page.name for page in pages if find_blocks(page) and page.resolve() not in typed] == []
    text = "\n".join(page.read_text() for page in pages)
    assert [line for line in NOT_TYPED if f"    {line}\n" not in text] == []


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
    whole = choose_tabs((DOCS / "tutorial.md").read_text(), library)
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
