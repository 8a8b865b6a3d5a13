"""The command lines of docker and podman."""

from pathlib import Path
from typing import Any

import pytest

from node.protocol import Container
from node.setup.containers import engine, prepare
from node_facts import make_programs

ENV = {"PATH": "/usr/bin", "HOME": "/home/me", "API_TOKEN": "hunter2", "RANK": "0"}


def run(
    words: list[str], env: dict[str, str] = ENV, *, uid: int = 1000, **more: Any
) -> tuple[list[str], dict[str, str]]:
    container = Container(engine=tuple(words), image="sha256:ab", **more)
    return engine.run_words(container, ["python3", "a b"], env, name="cluster-j-1-0", user=(uid, 1001))


def test_a_process_in_a_container_that_runs() -> None:
    """Docker and Podman take the same words."""
    command = ["python3", "a b"]
    user = (1000, 1001)
    words, passed = engine.exec_words(
        ["docker"], "cluster-j-1", command, ENV, name="cluster-j-1-0", user=user, cwd="/a"
    )
    assert words == [
        *("docker", "exec", "--user", "1000:1001", "--workdir", "/a", "--env", "CLUSTER_CONTAINER=cluster-j-1-0"),
        *("--env", "API_TOKEN", "--env", "HOME=/home/me", "--env", "PATH=/usr/bin", "--env", "RANK"),
        *("cluster-j-1", "python3", "a b"),
    ]
    assert passed == {"API_TOKEN": "hunter2", "RANK": "0"}


@pytest.mark.parametrize(
    ("words", "uid", "ids"),
    [
        (["podman"], 0, ["--user", "0:1001"]),
        (["docker"], 1000, ["--user", "1000:1001"]),
        (engine.DOCKER_AS_ROOT, 1000, ["--user", "1000:1001"]),
    ],
)
def test_the_image_does_not_choose_the_user(words: list[str], uid: int, ids: list[str]) -> None:
    line, _ = run(words, uid=uid)
    found = [at for at, word in enumerate(line) if word in {"--user", "--userns"}]
    assert [word for at in found for word in line[at : at + 2]] == ids


@pytest.mark.parametrize("words", [["podman"], ["docker"], engine.DOCKER_AS_ROOT])
def test_no_secret_is_on_a_command_line_and_the_engine_keeps_its_own_settings(words: list[str]) -> None:
    secrets = {"A_SECRET": "hunter2", "LD_SDK_KEY": "hunter2"}  # the second begins like those that the engine obeys
    obeyed = {
        "LD_PRELOAD": "/lib/a.so",
        "DOCKER_HOST": "tcp://elsewhere",
        "XDG_RUNTIME_DIR": "/elsewhere",
        "CONTAINERS_CONF": "/elsewhere",
        "REGISTRY_AUTH_FILE": "/elsewhere",  # podman ends if it does not exist
    }
    removed = {"JAVA_TOOL_OPTIONS": "-Dx=y", "PYTHONPATH": "/elsewhere"}  # by sudo
    line, passed = run(words, secrets | obeyed | removed)
    assert "hunter2" not in " ".join(line)
    given = obeyed | (removed if words[0] == "sudo" else {})
    assert passed == (secrets if words[0] == "sudo" else secrets | removed)
    assert {f"{name}={value}" for name, value in given.items()} <= set(line)
    assert "--privileged" not in line


def test_gpus() -> None:
    assert "nvidia.com/gpu=all" in run(["podman"], gpus=True)[0]
    assert "--gpus" in run(["docker"], gpus=True)[0]


def test_folders_are_mounted_before_what_is_inside() -> None:
    mounts = [("/x", "/a/b", False), ("/y", "/a", False), ("/z", "/a", True)]
    assert engine.sort_mounts(mounts) == [("/z", "/a", True), ("/x", "/a/b", False)]


def test_credentials_are_named_by_their_path() -> None:
    path = "/dev/shm/x/config.json"
    assert engine.pull_words(["podman"], "r/a", path) == ["podman", "pull", "--quiet", "--authfile", path, "r/a"]
    assert engine.pull_words(["docker"], "r/a", path) == ["docker", "--config", "/dev/shm/x", "pull", "--quiet", "r/a"]
    assert engine.pull_words(["docker"], "r/a", None) == ["docker", "pull", "--quiet", "r/a"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(engine, "SEARCH_PATH", f"{tmp_path}")
    monkeypatch.setenv("PATH", f"{tmp_path}")
    monkeypatch.setenv("HOME", f"{tmp_path}/home")
    return tmp_path


DOWN = "echo Cannot connect to the Docker daemon >&2; exit 1"


@pytest.mark.parametrize(
    ("wanted", "have", "found"),
    [
        ("auto", {"docker": "exit 0", "podman": "exit 0"}, ["docker"]),
        ("auto", {"docker": DOWN, "podman": "exit 0"}, ["podman"]),
        ("podman", {"docker": "exit 0", "podman": "exit 0"}, ["podman"]),
        ("docker", {"podman": "exit 0"}, None),
        ("auto", {"docker": "echo podman version 4.3.1"}, None),
        ("auto", {}, None),
    ],
)
def test_the_first_engine_that_works(wanted: str, have: dict[str, str], found: list[str] | None, folder: Path) -> None:
    make_programs(folder, **have)
    assert prepare.Node().do_find(wanted)["engine"] == found


def test_docker_with_sudo_if_only_root_may_use_it(folder: Path) -> None:
    docker = '[ -n "$AS_ROOT" ] || { echo permission denied >&2; exit 1; }'
    make_programs(folder, docker=docker, sudo='shift 2; export AS_ROOT=1; exec "$@"')
    assert prepare.Node().do_find("auto")["engine"] == engine.DOCKER_AS_ROOT
