"""The plan for the missing parts of a node, and its script."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from bootstrap.environment.bundle import Bundle
from bootstrap.environment.facts import Checked, LibraryDir, NodeFacts
from bootstrap.environment.file_cache import BundleFile
from bootstrap.environment.steps import (
    PACKAGES,
    CheckLibraries,
    InstallPackages,
    MakeClusterKey,
    MakeEnvironment,
    NodePlan,
    plan_check,
    plan_node,
    plan_setup,
    render_script,
)
from node_facts import BUNDLE, FACTS, TREE, make_programs, run_shell

PYTHON_FILE = BundleFile(path=Path("python-3.11.9.tar.gz"), sha256="5" * 64, size_bytes=2000)
CUDA = LibraryDir(path="/usr/local/cuda-10.2/lib64", names=frozenset(["libcudart.so.10.2"]))


def plan(facts: NodeFacts, **more: Any) -> NodePlan:
    settings = {"bundle": BUNDLE, "setup": None, "is_head": False, **more}
    return plan_node(facts, trees=(TREE,), cluster="demo", **settings)


def kinds(plan: NodePlan) -> list[type]:
    return [type(step) for step in plan.steps]


def checked(facts: NodeFacts, bundle: Bundle = BUNDLE, setup: str | None = None) -> NodeFacts:
    check = plan_check(facts, bundle=bundle, setup=setup)
    return replace(
        facts, envs=frozenset([bundle.digest]), checked={bundle.digest: Checked(key=check.key, unresolved=("libx",))}
    )


HASHES = frozenset(file.sha256 for file in BUNDLE.files)
MADE = checked(FACTS)
DONE = replace(MADE, trees=frozenset([TREE.digest]))


@pytest.mark.parametrize(
    ("facts", "is_head", "files", "steps", "trees"),
    [
        (FACTS, False, 2, [MakeEnvironment, CheckLibraries], 1),
        (FACTS, True, 2, [MakeEnvironment, CheckLibraries, MakeClusterKey], 1),
        (replace(FACTS, files=HASHES), False, 0, [MakeEnvironment, CheckLibraries], 1),
        (replace(FACTS, files=frozenset([BUNDLE.files[0].sha256])), False, 1, [MakeEnvironment, CheckLibraries], 1),
        (MADE, False, 0, [], 1),
        (DONE, False, 0, [], 0),
        (replace(DONE, newest_env=BUNDLE.digest), False, 0, [], 0),
        (replace(DONE, newest_env="another"), False, 0, [MakeEnvironment], 0),
        (replace(DONE, missing_libraries=("libgomp.so.1",)), False, 0, [InstallPackages], 0),
        (DONE, True, 0, [MakeClusterKey], 0),
        (replace(DONE, cluster_key="ssh-ed25519 AAAA"), True, 0, [], 0),
    ],
)
def test_plans_contain_only_missing_parts(
    *, facts: NodeFacts, is_head: bool, files: int, steps: list[type], trees: int
) -> None:
    found = plan(facts, is_head=is_head)
    assert (len(found.files), kinds(found), len(found.trees)) == (files, steps, trees)
    assert bool(found) == bool(files or steps or trees)


def test_the_heads_own_command_has_an_environment() -> None:
    """That of the jobs stays the newest, which `exec` and `ssh` use."""
    client = replace(BUNDLE, files=(PYTHON_FILE, *BUNDLE.files))
    found = plan(DONE, client=client)
    assert [step.bundle for step in found.steps] == [client, BUNDLE]
    assert found.files == client.files
    done = replace(DONE, envs=DONE.envs | {client.digest}, files=HASHES)
    assert not plan(done, client=client)
    # The head gives this machine's Python to new nodes, although its own environment is of another machine's.
    packed = replace(BUNDLE, files=(PYTHON_FILE, *BUNDLE.files))
    made = checked(done, packed)
    found = plan(replace(made, envs=made.envs | {BUNDLE.digest}), bundle=packed, client=BUNDLE)
    assert (found.files, found.steps) == ((PYTHON_FILE,), ())


def test_libraries_are_checked_again_when_the_inputs_change() -> None:
    target = replace(BUNDLE.target, requirements=("mxnet-cu102==1.9.1",))
    bundle = replace(BUNDLE, target=target)
    facts = checked(FACTS, bundle)
    assert plan_check(facts, bundle=bundle, setup=None) is None
    assert plan_check(facts, bundle=bundle, setup="5e") is not None
    assert plan_check(replace(facts, libraries=frozenset(["libcuda.so.1"])), bundle=bundle, setup=None) is not None
    found = plan_check(replace(facts, cuda_dirs=(CUDA,)), bundle=bundle, setup=None)
    assert found.dirs == (CUDA.path,)


@pytest.mark.parametrize("managed", [False, True])
def test_the_script_of_a_plan_is_valid_shell(tmp_path: Path, *, managed: bool) -> None:
    facts = replace(FACTS, missing_libraries=tuple(PACKAGES), cuda_dirs=(replace(CUDA, path="/it's $(odd)"),))
    bundle = replace(BUNDLE, files=(PYTHON_FILE, *BUNDLE.files)) if managed else BUNDLE
    path = None if managed else "/it's/python3"
    bundle = replace(bundle, target=replace(bundle.target, python_path=path))
    setup = plan_setup(facts, commands=["echo 'it''s'", "$(", "\n"])
    assert not plan_setup(replace(facts, setups=frozenset([setup.steps[-1].digest])), commands=setup.steps[-1].commands)
    steps = (*setup.steps, *plan(facts, bundle=bundle, is_head=True).steps)
    script = tmp_path / "script"
    script.write_text(render_script(steps))
    subprocess.run(["/bin/sh", "-n", str(script)], check=True)
    assert (f"python/{PYTHON_FILE.sha256}/bin/python3.11" in script.read_text()) == managed


def test_what_another_command_has_made_meanwhile_stays(tmp_path: Path) -> None:
    """This command gathered the facts before; the other one's job runs already."""
    made = [f"env/{BUNDLE.digest}/.complete", f"env/{BUNDLE.digest}/bin/python", "ssh/id_ed25519", "ssh/id_ed25519.pub"]
    for path in made:
        (tmp_path / ".cluster" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / ".cluster" / path).write_text("in use")
    steps = (MakeEnvironment(bundle=BUNDLE), MakeClusterKey(cluster="demo"))
    done = run_shell(render_script(steps), tmp_path, path="/usr/bin:/bin")
    assert (done.returncode, done.stderr) == (0, "")
    assert [(tmp_path / ".cluster" / path).read_text() for path in made] == ["in use"] * 4


@pytest.mark.parametrize(("link", "exit_code", "seen"), [("ln", 0, "wheel"), ("ln", 1, ""), ("cp", 0, "")])
def test_environments_share_unpacked_wheels(tmp_path: Path, link: str, exit_code: int, seen: str) -> None:
    """Each took gigabytes and minutes. What an interrupted one leaves is not used: power loss empties files.

    Where the file system has no hard links, uv copies, and the wheels would be on the disk twice.
    """
    uv = f'ls "$UV_CACHE_DIR"; >"$UV_CACHE_DIR/wheel"; {link} -f "$UV_CACHE_DIR/wheel" linked; exit $(cat code)'
    make_programs(tmp_path / ".cluster" / "tools", **{f"uv_{BUNDLE.uv.sha256}": uv})
    step = MakeEnvironment(bundle=BUNDLE, with_modules=False)
    for code in (exit_code, 1):
        (tmp_path / ".cluster" / "code").write_text(str(code))
        done = run_shell(render_script([step]), tmp_path)
        shutil.rmtree(tmp_path / ".cluster" / "env" / BUNDLE.digest, ignore_errors=True)
    assert done.stdout.strip() == seen


MISSING = "MXNet or PyTorch needs {}, which could not be installed"


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({}, 0, ""),
        ({"apt_get": "exit 100"}, 1, MISSING.format("libone-dev libtwo-dev")),
        ({"apt_get": None}, 1, MISSING.format("one two")),  # neither apt nor dnf
    ],
)
def test_missing_packages_are_installed(
    tmp_path: Path, changes: dict[str, str | None], code: int, message: str
) -> None:
    """The package tools are fakes, so the test installs nothing on this machine."""
    log = 'echo "$@" >>"$HOME/calls"'
    bodies = {"sudo": f'{log}; shift; "$@"', "env": 'shift; exec "$@"', "id": "echo 1000", "apt_get": log, **changes}
    bodies["python3"] = "exit 0"
    programs = make_programs(tmp_path / "bin", **{name: body for name, body in bodies.items() if body is not None})
    for name in ("mkdir", "rm", "sh"):
        (programs / name).symlink_to(f"/usr/bin/{name}")
    (tmp_path / ".cluster").mkdir()
    (tmp_path / ".cluster" / "known").touch()
    step = InstallPackages(packages=(("libone-dev", "one"), ("libtwo-dev", "two")))
    done = run_shell(render_script([step]), tmp_path, path=str(programs))
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert not (tmp_path / ".cluster" / "known").exists()  # the facts are gathered again
    if code == 0:
        calls = (tmp_path / "calls").read_text()
        assert "install -y --no-install-recommends libone-dev libtwo-dev\n" in calls
        assert "apt-daily.timer" in calls
