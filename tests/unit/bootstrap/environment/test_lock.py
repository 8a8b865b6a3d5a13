"""Wheels that are locked but not fetched: the real uv with a package index over HTTP."""

import random
import re
import subprocess
import sys
import tarfile
from http.server import BaseHTTPRequestHandler
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from bootstrap.environment import fetches
from bootstrap.environment.bundle import fetch_bundle
from bootstrap.environment.fetches import bring_here
from bootstrap.environment.file_cache import BundleFile, cached_path, describe_file
from bootstrap.environment.lock import NoWheelError, check_hashes, lock_source, lock_wheels
from bootstrap.environment.package_build import render_build
from bootstrap.environment.target import WheelTarget
from bootstrap.environment.uv import find_settings, open_url
from cluster.views.messages import track
from foundation.errors import ClusterError
from foundation.files import written_whole
from foundation.progress import Event, silent
from http_server import serve_http
from index_server import Index, make_source, make_wheel
from node_facts import BUNDLE, TARGET

THING = "thing-1.0+cu1-py3-none-any.whl"
PART = "part-2.0-py3-none-any.whl"
UV = f"uv-{version('uv')}-py3-none-any.whl"
WANTED = replace(TARGET, requirements=("thing==1.0+cu1",))


@pytest.fixture
def index(empty_index: Index) -> Index:
    """A package index in which the wheel `thing` requires `part`."""
    content = {"thing.py": b"x = 1\n" * 1000, "big": random.Random(1).randbytes(5000)}
    make_wheel(empty_index.folder, THING, content, requires="part")
    make_wheel(empty_index.folder, PART, {"part.py": b"y = 2\n"})
    make_wheel(empty_index.folder, UV, {"uv.py": b""})
    return empty_index


def test_wheels_are_described_without_a_download(tmp_path: Path, index: Index) -> None:
    found = fetch_bundle(WANTED, cache=tmp_path / "cache", report=silent)
    wheels = [file for file in found.files if file.urls]
    assert [file.name for file in wheels] == [PART, THING, UV]
    for file in wheels:
        described = describe_file(index.folder / file.name)
        assert (file.sha256, file.size_bytes) == (described.sha256, described.size_bytes)
        assert not file.path.exists()


def test_the_best_wheel_for_the_nodes_is_chosen(tmp_path: Path, index: Index) -> None:
    for tags in ("py3-none-any", "cp39-abi3-manylinux2014_x86_64", "cp312-cp312-manylinux_2_28_x86_64"):
        make_wheel(index.folder, f"some-1.0-{tags}.whl", {})
    target = replace(TARGET, python_version=(3, 12), glibc=(2, 17))
    [found] = lock_wheels(target, ["some"], cache=tmp_path, report=silent)
    assert found.name == "some-1.0-cp39-abi3-manylinux2014_x86_64.whl"


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("python_version", [(3, 9), (3, 12)])
def test_nothing_beside_the_temporary_folder_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python_version: tuple[int, int]
) -> None:
    """All users of this machine can write to /tmp: neither settings of uv there count, nor does a Python run."""
    python, shared = tmp_path / "tmp" / ".venv" / "bin" / "python", tmp_path / "tmp"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\ntouch "{tmp_path}/ran"\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (shared / ".venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (shared / "uv.toml").write_text("offline = true\n")
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    target = replace(TARGET, python_version=python_version)
    [found] = lock_wheels(target, ["part"], cache=tmp_path, report=silent)
    assert found.name == PART
    assert not (tmp_path / "ran").exists()


def test_a_wheel_of_an_address(tmp_path: Path, index: Index) -> None:
    line = f"part @ {index.url}/files/{PART}"
    [found] = lock_wheels(replace(TARGET, requirements=(line,)), [line], cache=tmp_path, report=silent)
    described = describe_file(index.folder / PART)
    assert (found.sha256, found.size_bytes, found.urls) == (
        described.sha256, described.size_bytes, (f"{index.url}/files/{PART}",)
    )  # fmt: skip


def test_a_wheel_of_the_users_own_with_what_it_needs(tmp_path: Path, index: Index) -> None:
    name = "mxnet-1.7.0-1_cu112-py3-none-linux_x86_64.whl"
    path = make_wheel(index.folder.with_name("own"), name, {}, requires="part")
    target = replace(TARGET, requirements=(name, str(path)))
    bundle = fetch_bundle(target, cache=tmp_path / "cache", report=silent)
    assert {name, PART} <= {wheel.name for wheel in bundle.wheels}
    assert bundle.library == name


def test_pips_settings_are_uvs(tmp_path: Path) -> None:
    conf = tmp_path / "pip.conf"
    conf.write_text(
        "[global]\nindex-url = https://a/simple\nextra-index-url =\n  https://b/simple\n  https://c/simple\n"
        "find-links = /x /y\ntrusted-host = a\n"
    )
    environ = {"PIP_CONFIG_FILE": str(conf), "PIP_TRUSTED_HOST": "b", "HOME": str(tmp_path), "XDG_CONFIG_DIRS": "/none"}
    found, no_index = find_settings(environ)
    assert (found["UV_DEFAULT_INDEX"], found["UV_INDEX"]) == ("https://a/simple", "https://b/simple https://c/simple")
    assert (found["UV_FIND_LINKS"], found["UV_INSECURE_HOST"], no_index) == ("/x,/y", "b", False)
    found, no_index = find_settings({**environ, "PIP_NO_INDEX": "1", "UV_DEFAULT_INDEX": "https://d"})
    assert (found["UV_DEFAULT_INDEX"], no_index) == ("https://d", True)


@pytest.mark.parametrize(("in_file", "in_folder", "wanted"), [(2, False, "1"), (0, True, "1"), (0, False, None)])
def test_uv_trusts_the_authorities_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, in_file: int, in_folder: bool, wanted: str | None
) -> None:
    """Ubuntu has them in a folder, of which ssl loads what it needs, when it needs it."""
    context = SimpleNamespace(cert_store_stats=lambda: {"x509_ca": in_file})
    monkeypatch.setattr("ssl.create_default_context", lambda: context)
    monkeypatch.setattr("ssl.get_default_verify_paths", lambda: SimpleNamespace(capath=str(tmp_path)))
    if in_folder:
        (tmp_path / "5ed36f99.0").touch()
    assert find_settings({})[0].get("UV_SYSTEM_CERTS") == wanted
    assert find_settings({"UV_SYSTEM_CERTS": "0"})[0]["UV_SYSTEM_CERTS"] == "0"


def test_an_index_with_a_password(tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only this machine has it: the wheels' URLs, which nodes get, are without."""
    index.login = "me:secret"
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("//", "//me:secret@") + "/simple/")
    found = fetch_bundle(WANTED, cache=tmp_path, report=silent)
    assert "secret" not in str(found)
    bring_here(found.files[0])
    monkeypatch.setenv("PIP_INDEX_URL", f"{index.url}/simple/")
    (tmp_path / ".netrc").write_text("machine 127.0.0.1\nlogin me\npassword secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    with pytest.raises(OSError, match="401"):
        open_url(found.files[0].urls[0])
    monkeypatch.setenv("HOME", str(tmp_path))
    open_url(found.files[0].urls[0]).close()


def test_an_index_that_redirects_to_s3(tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose signed addresses are for GET alone, and refuse the index's password."""

    class Store(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = (index.folder / self.path[1:]).read_bytes()
            self.send_response(400 if self.headers["Authorization"] else 200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    index.login = "me:secret"
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("//", "//me:secret@") + "/simple/")
    with serve_http(Store) as url:
        index.refusal = (302, b"", {"Location": f"{url}/{PART}"})
        [found] = lock_wheels(replace(TARGET, requirements=("part",)), ["part"], cache=tmp_path, report=silent)
        bring_here(found)
    assert found.path.read_bytes() == (index.folder / PART).read_bytes()


def test_an_index_without_sha256(tmp_path: Path, index: Index) -> None:
    index.digest = "md5"
    [found] = lock_wheels(replace(TARGET, requirements=("part",)), ["part"], cache=tmp_path, report=silent)
    assert found.sha256 == describe_file(index.folder / PART).sha256
    assert found.urls == (f"{index.url}/files/{PART}",)


def test_a_proxy_of_pips_settings(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_PROXY", index.url)
    with pytest.raises(OSError, match="404"):
        open_url("http://index.example/files/part.whl")
    assert index.asked == [("http://index.example/files/part.whl", "")]


@pytest.fixture
def thing(tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> BundleFile:
    """A wheel that is in the index, but not in the cache."""
    monkeypatch.setattr(fetches, "FIRST_PAUSE_S", 0.01)
    described = describe_file(index.folder / THING)
    url = f"{index.url}/files/{THING.replace('+', '%2B')}"
    return replace(described, path=cached_path(tmp_path / "cache", described.sha256, THING), urls=(url,))


EVIL = b"open(%r, 'w')\n"
PYPROJECT = b"[build-system]\nrequires = []\nbuild-backend = 'evil'\nbackend-path = ['.']\n"


@pytest.mark.parametrize("how", ["folder", "setup.py"])
def test_a_source_is_found_and_not_run(tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    ran = tmp_path / "ran"
    code = EVIL.replace(b"%r", repr(str(ran)).encode())
    content = {"setup.py": code} if how == "setup.py" else {"evil.py": code, "pyproject.toml": PYPROJECT}
    folder = tmp_path / "own" if how == "folder" else index.folder
    for version_ in ("1.0", "2.0", "3.0"):
        make_source(folder, f"sourced-{version_}.tar.gz", {**content, "version": version_.encode()})
    if how == "folder":
        monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    target = replace(TARGET, requirements=("sourced>=1",), limits=("sourced<3", "six<1"))
    with pytest.raises(NoWheelError):
        lock_wheels(target, target.requirements, cache=tmp_path / "cache", report=silent)
    source = lock_source(target, "sourced", cache=tmp_path / "cache")
    bring_here(source)
    assert source.path.read_bytes() == (folder / "sourced-2.0.tar.gz").read_bytes()
    assert not ran.exists()


@pytest.mark.parametrize(
    ("files", "builds", "chosen"),
    [
        pytest.param({"old-1.0": "wheel", "old-2.0": "source"}, "old", "old-2.0", id="newest-first"),
        pytest.param(
            {"old-1.0": "wheel", "old-2.0": "wheel needs sub==4.9.*", "sub-4.9": "source", "sub-5.0": "source"},
            "sub",
            "old-2.0",
            id="dependency",
        ),
        pytest.param({"old-1.0": "wheel", "old-2.0": "wheel needs absent"}, None, "old-1.0", id="contradiction"),
        pytest.param({"old-1.0": "wheel", "old-2.0": "source and newer"}, None, "old-1.0", id="newer-systems"),
    ],
)
def test_a_package_without_a_wheel_is_built(
    tmp_path: Path, index: Index, *, files: dict[str, str], builds: str | None, chosen: str
) -> None:
    for name, kind in files.items():
        if kind.startswith("source"):
            make_source(index.folder, f"{name}.tar.gz", {})
        if kind.endswith("newer"):  # a wheel, but not for the nodes
            make_wheel(index.folder, f"{name}-py3-none-manylinux_2_39_x86_64.whl", {})
        if kind.startswith("wheel"):
            needs = kind.removeprefix("wheel").removeprefix(" needs ")
            make_wheel(index.folder, f"{name}-py3-none-any.whl", {"x.py": b""}, requires=needs)
    asked: list[str] = []

    def build(target: WheelTarget, requirement: str) -> BundleFile:
        asked.append(requirement)
        source = lock_source(target, requirement, cache=tmp_path).name.removesuffix(".tar.gz")
        return describe_file(make_wheel(tmp_path / "built", f"{source}-cp311-cp311-linux_x86_64.whl", {}))

    target = replace(TARGET, requirements=("old",))
    bundle = fetch_bundle(target, cache=tmp_path / "cache", report=silent, build=build)
    assert asked == ([builds] if builds else [])
    assert any(wheel.name.startswith(f"{chosen}-") for wheel in bundle.wheels)


@pytest.fixture
def git_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """https://git.example/ is this machine's disk."""
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "url.file:///.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "https://git.example/")


def make_repository(folder: Path, content: dict[str, str]) -> str:
    """A git repository with these files, tagged v1, and a later commit. Returns its URL."""
    folder.mkdir()
    for name, text in content.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    git = ["git", "-C", str(folder), "-c", "user.name=me", "-c", "user.email=me@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "1"], ["tag", "v1"], ["rm", "-qr", "."]):
        subprocess.run([*git, *words], check=True)
    subprocess.run([*git, "commit", "-qm", "2", "--allow-empty"], check=True)
    return f"git+https://git.example{folder}"


@pytest.mark.usefixtures("git_server")
def test_a_git_repository_is_built_and_not_run_here(tmp_path: Path, index: Index) -> None:
    ran = tmp_path / "ran"
    url = make_repository(tmp_path / "repository", {"own/setup.py": f"open({str(ran)!r}, 'w')\n"})
    line = f"Own[more] @ {url}@v1#subdirectory=own ; python_version >= '3'"
    make_wheel(index.folder, "own-9.0-py3-none-any.whl", {})  # not this one
    sources: list[BundleFile] = []

    def build(target: WheelTarget, requirement: str) -> BundleFile:
        sources.append(lock_source(target, requirement, cache=tmp_path / "cache"))
        return describe_file(make_wheel(tmp_path / "built", "own-1.0-py3-none-any.whl", {}, requires="part"))

    bundle = fetch_bundle(replace(TARGET, requirements=(line,)), cache=tmp_path / "cache", report=silent, build=build)
    assert {"own-1.0-py3-none-any.whl", PART} <= {wheel.name for wheel in bundle.wheels}
    with tarfile.open(sources[0].path) as archive:
        top = sources[0].name.removesuffix(".tar.gz")
        assert archive.getnames() == [top, f"{top}/setup.py"]
    assert re.fullmatch(r"own-git-0\+g[0-9a-f]{12}", top)
    assert not ran.exists()
    with pytest.raises(ClusterError, match=r"git fetch .*: fatal: .*none") as caught:
        lock_source(replace(TARGET, requirements=(f"own @ {url}@none",)), "own", cache=tmp_path)
    assert caught.value.hint == "check the URL and the branch, tag or commit"


@pytest.mark.usefixtures("git_server")
def test_the_version_of_a_git_repository(tmp_path: Path) -> None:
    """setuptools_scm and pbr would ask git for it, and fail."""
    url = make_repository(tmp_path / "repository", {"setup.py": ""})
    subprocess.run(["git", "-C", str(tmp_path / "repository"), "tag", "v1.2.3"], check=True)
    source = lock_source(replace(TARGET, requirements=(f"own @ {url}@v1.2.3",)), "own", cache=tmp_path)
    assert source.name == "own-git-1.2.3.tar.gz"
    text = render_build(source, "key", tools=BUNDLE, setup=None)
    assert "\nexport SETUPTOOLS_SCM_PRETEND_VERSION=1.2.3 PBR_VERSION=1.2.3\n" in text


@pytest.mark.usefixtures("index")
def test_an_unlisted_hash_is_refused(tmp_path: Path) -> None:
    lines = [f"A_b==1 --hash=sha256:{'1' * 64} --hash=sha256:{'2' * 64}", "c"]
    lines += ["d==1", f"d==2 ; sys_platform == 'darwin' --hash=sha256:{'1' * 64}"]  # a lock with forks
    files = [BundleFile(path=Path(name), sha256=sha256 * 64, size_bytes=1) for name, sha256 in (
        ("A_b-1-py3-none-any.whl", "2"), ("c-1-py3-none-any.whl", "3"), ("d-1-py3-none-any.whl", "5"),
        ("a_b-1.tar.gz", "4"),
    )]  # fmt: skip
    check_hashes(files[:3], lines, TARGET, built=())
    check_hashes(files, lines, TARGET, built={"4" * 64})
    with pytest.raises(ClusterError, match=r"a_b-1.tar.gz: its SHA-256 is 444"):
        check_hashes(files, lines, TARGET, built=())
    with pytest.raises(ClusterError, match=f"{PART}: its SHA-256 is "):
        fetch_bundle(replace(TARGET, requirements=(f"part --hash=sha256:{'1' * 64}",)), cache=tmp_path, report=silent)


def test_a_file_is_downloaded_once(index: Index, thing: BundleFile) -> None:
    index.failing = index.cutting = 1
    for _ in range(2):
        bring_here(thing)
        assert describe_file(thing.path).sha256 == thing.sha256
    assert len(index.asked) == 3


def test_what_a_killed_download_left_is_removed(thing: BundleFile) -> None:
    """But not what another command downloads at the moment."""
    with written_whole(thing.path) as other:
        (thing.path.parent / ".new-killed").write_bytes(b"2 GB")
        bring_here(thing)
        assert sorted(thing.path.parent.iterdir()) == sorted([other, thing.path])


def test_a_damaged_download_is_discarded(tmp_path: Path, index: Index, thing: BundleFile) -> None:
    index.flip = True
    with pytest.raises(ClusterError, match=r"thing-1.0\+cu1.* could not be fetched: .* has the SHA-256") as raised:
        bring_here(thing)
    assert raised.value.hint
    assert [path for path in (tmp_path / "cache" / "wheels").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("wheels", "chosen", "announced"), [(["2.0", "2.0+cpu", "2.0+cu9"], "2.0+cpu", False), (["2.0"], "2.0", True)]
)
def test_nodes_without_gpus_get_the_cpu_build_of_pytorch(
    tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch, *, wheels: list[str], chosen: str, announced: bool
) -> None:
    """Where the index has none, the size of the build for GPUs is said before it is fetched."""
    monkeypatch.setattr("bootstrap.environment.bundle.LARGE_GB", 0.0)
    (tmp_path / "limits.txt").write_text("torch<3\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "limits.txt"))
    for label in wheels:
        make_wheel(index.folder, f"torch-{label}-py3-none-any.whl", {"torch.py": b"x = 1\n"})
    target = replace(TARGET, framework="pytorch", requirements=("torch==2.0",), without_gpus=True)
    events: list[Event] = []
    bundle = fetch_bundle(target, cache=tmp_path / "cache", report=events.append)
    assert bundle.torch.version == chosen
    messages = [event.what for event in events if "GB of wheels, with CUDA" in event.what]
    running: dict[str, str] = {}
    for event in events:
        track(running, event)
    assert not running  # although the search for the CPU build failed
    assert len(messages) == announced
