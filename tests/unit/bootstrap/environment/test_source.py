"""MXNet from source: the choices, and the build script, run here with a small repository."""

import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from bootstrap.environment.cuda import cuda_of, find_cuda, find_warnings
from bootstrap.environment.facts import LibraryDir, NodeFacts
from bootstrap.environment.source_build import (
    SourceBuild,
    check_fit,
    choose_build,
    choose_packages,
    find_ref,
    is_valid_answer,
    label_built,
    parse_requirements,
    plan_tools,
    render_build,
    render_find_built,
)
from bootstrap.environment.steps import InstallPackages, MakeEnvironment, plan_node
from bootstrap.runtime.code import runtime_path
from foundation.errors import ClusterError
from node_facts import BUNDLE, FACTS, PYTHON, TARGET, make_programs, run_shell
from source_repository import FILES, commit, git, write_repository

GPU = replace(
    FACTS,
    gpus=(("8.6", "NVIDIA A10G"),),
    displays=("NVIDIA",),
    cuda_dirs=(
        LibraryDir(path="/usr/local/cuda-11.2/lib64", names=frozenset({"libcudart.so.11.0"})),
        LibraryDir(path="/usr/local/cuda/lib64", names=frozenset({"libcudart.so.11.0", "libcublas.so.11"})),
    ),
)
URL = "https://example.com/mxnet.git"
SMALL = ("USE_S3=0", "USE_OPENCV=0", "USE_BLAS=none")


def choose(facts: NodeFacts = FACTS, *options: str, ref: str = "v1.7.x", url: str = URL) -> SourceBuild:
    return choose_build(facts, ref=ref, url=url, options=options)


@pytest.mark.parametrize(
    ("facts", "options", "packages", "cuda_path"),
    [
        (FACTS, (), ["libopencv-dev", "libcurl4-openssl-dev", "libssl-dev", "libopenblas-dev", "liblapack-dev"], None),
        (FACTS, SMALL, [], None),
        (FACTS, ("USE_OPENCV=0", "USE_BLAS=mkl"), ["libcurl4-openssl-dev", "libssl-dev"], None),
        (GPU, SMALL, [], "/usr/local/cuda"),
        (GPU, (*SMALL, "USE_CUDA=0"), [], None),
        (GPU, (*SMALL, "USE_CUDA_PATH=/usr/local/cuda-11.2"), [], "/usr/local/cuda-11.2"),
    ],
)
def test_options_decide_the_packages(
    facts: NodeFacts, options: tuple[str, ...], packages: list[str], cuda_path: str | None
) -> None:
    build = choose(facts, *options)
    assert dict(build.options)["USE_DIST_KVSTORE"] == "1"
    assert [debian for debian, _ in choose_packages(build)] == packages
    assert build.cuda_path == cuda_path
    assert build.cudart == ("libcudart.so.11.0" if facts is GPU else None)


def test_the_key_depends_on_all_inputs() -> None:
    builds = [
        choose(),
        choose(FACTS, "USE_S3=0"),
        choose(ref="v1.6.x"),
        choose(url=URL + "/other"),
        choose(replace(FACTS, glibc=(2, 35))),
        choose(replace(FACTS, system="Ubuntu 22.04.4 LTS")),
        choose(GPU),
    ]
    assert len({build.key for build in builds}) == len(builds)
    assert choose(FACTS, "USE_S3=1").key == choose().key
    assert choose(replace(FACTS, disk_free_kib=1)).key == choose().key


def test_labels_of_built_wheels() -> None:
    build = choose(GPU)
    assert label_built(build, "mxnet-1.7.0-1_cu112_0a1b2c3d4e5f-py3-none-linux_x86_64.whl") == "source@v1.7.x+cu112"
    assert label_built(build, "mxnet-1.7.0-1_cpu_0a1b2c3d4e5f-py3-none-linux_x86_64.whl") == "source@v1.7.x"
    assert cuda_of("source@v1.7.x+cu112") == (11, 2)
    assert cuda_of("source@v1.7.x") is None
    assert find_cuda(GPU, "source@v1.7.x+cu112").library_dirs == ("/usr/local/cuda-11.2/lib64", "/usr/local/cuda/lib64")
    assert find_warnings(FACTS, replace(TARGET, requirements=("source@v1.7.x",))) == ()
    assert find_ref("source@v1.7.x") == "v1.7.x"
    assert find_ref("mxnet==1.9.1") is None


def test_requirements_of_a_built_wheel() -> None:
    metadata = "Name: mxnet\nRequires-Dist: numpy <2\nRequires-Dist: onnx ; extra == 'onnx'\n\nRequires-Dist: no\n"
    assert parse_requirements(metadata) == ("numpy <2",)


@pytest.mark.parametrize(
    ("answer", "good"),
    [
        ({"name": "mxnet-1-1_cpu_0-py3-none-linux_x86_64.whl", "sha256": "0" * 64}, True),
        ({"name": "../mxnet.whl", "sha256": "0" * 64}, False),
        ({"name": "mxnet.whl", "sha256": "0" * 63}, False),
        ({}, False),
    ],
)
def test_file_names_from_a_node_are_checked(*, answer: dict[str, object], good: bool) -> None:
    assert is_valid_answer(answer) is good


@pytest.mark.parametrize(
    ("change", "fits"), [({}, True), ({"glibc": (2, 39)}, True), ({"glibc": (2, 35)}, False), ({"machine": "i"}, False)]
)
def test_a_built_wheel_fits_similar_nodes_only(*, change: dict[str, object], fits: bool) -> None:
    facts = replace(FACTS, **change)  # type: ignore[arg-type]
    if fits:
        check_fit(choose(), facts, node="node-1")
        return
    with pytest.raises(ClusterError, match=r"node-1: .* for x86_64 and glibc 2.36 or later; this node has"):
        check_fit(choose(), facts, node="node-1")


def test_a_head_gets_the_build_tools_once() -> None:
    plan = plan_tools(FACTS, choose(), BUNDLE, PYTHON)
    assert ([type(step) for step in plan.steps], plan.files) == ([InstallPackages, MakeEnvironment], BUNDLE.files)
    there = plan_tools(replace(FACTS, envs=frozenset({BUNDLE.digest})), choose(), BUNDLE, PYTHON)
    assert ([type(step) for step in there.steps], there.files) == ([InstallPackages], ())


@pytest.mark.parametrize(("envs", "installed"), [(frozenset(), True), (frozenset({BUNDLE.digest}), False)])
def test_every_node_gets_the_linked_libraries(*, envs: frozenset[str], installed: bool) -> None:
    plan = plan_node(
        replace(FACTS, envs=envs),
        bundle=BUNDLE,
        python=PYTHON,
        setup=None,
        trees=(),
        cluster="c",
        is_head=False,
        node="n",
        packages=choose_packages(choose()),
    )
    assert isinstance(plan.steps[0], InstallPackages) == installed


class Head:
    """A home folder for the build script, whose Pythons are the Python of the tests."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.root = home / ".cluster"
        for python in (self.root / "env" / "python", Path(runtime_path(str(home))) / "bin" / "python"):
            python.parent.mkdir(parents=True)
            python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
            python.chmod(0o755)

    def build(self, build: SourceBuild, *, setup: str | None = None) -> subprocess.CompletedProcess[str]:
        text = render_build(build, python="env/python", node_python=sys.executable, setup=setup)
        return run_shell(text, self.home, path=os.defpath)

    def kill_in_the_middle(self, build: SourceBuild, *, hold: Path) -> None:
        """Starts a build, and kills all of it when make writes to the pipe `hold`."""
        os.mkfifo(hold)
        text = render_build(build, python="env/python", node_python=sys.executable, setup=None)
        env = {"HOME": str(self.home), "PATH": os.defpath}
        with subprocess.Popen(["/bin/sh", "-c", text], env=env, start_new_session=True) as process:
            hold.read_text()
            os.killpg(process.pid, signal.SIGKILL)
        hold.unlink()

    def find_built(self, build: SourceBuild) -> dict[str, str]:
        done = run_shell(render_find_built(build.key, node_python=sys.executable).text, self.home, path=os.defpath)
        assert done.returncode == 0, done.stderr
        answer: dict[str, str] = json.loads(done.stdout or "{}")
        return answer


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("it's $(odd)")
    write_repository(folder)
    return folder


@pytest.fixture
def head(tmp_path: Path) -> Head:
    return Head(tmp_path / "home")


def test_a_built_wheel_is_complete_and_checked(head: Head, repository: Path) -> None:
    build = choose(FACTS, *SMALL, url=f"file://{repository}")
    assert head.find_built(build) == {}
    setup = {"set": {"BUILDER": "it's"}, "prepend": {}, "append": {}, "unset": []}
    exports = head.root / "setup" / os.uname().nodename / "abc.env"
    exports.parent.mkdir(parents=True)
    exports.write_text(json.dumps(setup))
    done = head.build(build, setup="abc")
    assert done.returncode == 0, done.stderr
    assert "compiling for none, S3 0, by it's" in done.stdout
    assert list((head.root / "building").iterdir()) == []
    answer = head.find_built(build)
    commit_id = git(repository, "rev-parse", "--short=12", "HEAD")
    assert answer["name"] == f"mxnet-1.7.0-1_cpu_{commit_id}-py3-none-linux_{os.uname().machine}.whl"
    path = head.root / "files" / answer["sha256"] / answer["name"]
    assert hashlib.sha256(path.read_bytes()).hexdigest() == answer["sha256"]
    with zipfile.ZipFile(path) as content:
        names = set(content.namelist())
        record = content.read("mxnet-1.7.0.dist-info/RECORD").decode()
        assert "numpy" in parse_requirements(content.read("mxnet-1.7.0.dist-info/METADATA").decode())[0]
    expected = {"mxnet/libmxnet.so", "mxnet/tools/launch.py", "dmlc_tracker/tracker.py", "mxnet/libinfo.py"}
    assert expected <= names
    assert not any(".data/" in name for name in names)
    assert all(name in record for name in names)

    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--offline", "--no-deps", "--target"]
    wheel = head.root / "built" / build.key / answer["name"]
    subprocess.run([*command, str(head.home / "target"), str(wheel)], check=True)
    code = "import mxnet; from dmlc_tracker import tracker; print(mxnet.answer, tracker.PORT)"
    env = {"PYTHONPATH": str(head.home / "target"), "PATH": os.defpath}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["41", "9091"]

    data = bytearray(wheel.read_bytes())
    data[100] ^= 1
    wheel.write_bytes(data)
    assert head.find_built(build) == {}
    assert not wheel.exists()


def test_a_failed_build_resumes_and_a_killed_one_restarts(head: Head, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    write_repository(repository)
    makefile = repository / "Makefile"
    makefile.write_text(
        f"{makefile.read_text()}\ttest ! -p {tmp_path}/hold || echo >{tmp_path}/hold\n"
        f"\ttest ! -p {tmp_path}/hold || sleep 600\n\ttest -e {tmp_path}/fine\n"
    )
    commit(repository)
    build = choose(FACTS, *SMALL, url=f"file://{repository}")
    done = head.build(build)
    assert done.returncode != 0
    assert head.find_built(build) == {}
    place = head.root / "building" / build.key
    kept = place / "source" / "kept"
    kept.touch()
    assert head.build(build).returncode != 0
    assert kept.exists()
    head.kill_in_the_middle(build, hold=tmp_path / "hold")
    assert head.find_built(build) == {}
    assert kept.exists()
    (tmp_path / "fine").touch()
    assert head.build(build).returncode == 0
    assert head.find_built(build)["name"].startswith("mxnet-1.7.0-1_cpu_")
    assert not kept.exists()


def test_a_source_without_launch_py_is_refused(head: Head, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    write_repository(repository)
    assert "tools/launch.py" in FILES
    (repository / "tools" / "launch.py").unlink()
    commit(repository)
    done = head.build(choose(FACTS, *SMALL, url=f"file://{repository}"))
    assert done.returncode == 1
    assert "no tools/launch.py" in done.stderr


def test_a_gpu_build_needs_nvcc(head: Head, repository: Path, tmp_path: Path) -> None:
    cuda = tmp_path / "cuda"
    build = choose(GPU, *SMALL, f"USE_CUDA_PATH={cuda}", url=f"file://{repository}")
    done = head.build(build)
    assert done.returncode == 1
    assert f"{cuda}/bin/nvcc is missing" in done.stderr
    make_programs(cuda / "bin", nvcc="echo 'Cuda compilation tools, release 11.2, V11.2.152'")
    assert head.build(build).returncode == 0
    assert "-1_cu112_" in head.find_built(build)["name"]
