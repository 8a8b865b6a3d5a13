"""Wheels that are found but not fetched: the real pip with a package index over HTTP."""

import random
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from bootstrap.environment import package_index
from bootstrap.environment.bundle import fetch_bundle
from bootstrap.environment.fetches import WHAT, Fetches
from bootstrap.environment.file_cache import BundleFile, describe_file, find_kept, remember
from bootstrap.environment.package_index import (
    UNPACKED_TIMES,
    FoundWheel,
    NoSourceError,
    _describe,
    bring_here,
    download_source,
    find_unpacked_bytes,
    parse_report,
)
from bootstrap.environment.target import WheelTarget
from cluster.views.messages import still_running
from foundation.errors import ClusterError
from foundation.progress import Event, silent
from index_server import Index, make_source, make_wheel, serve_index
from node_facts import TARGET

THING = "thing-1.0+cu1-py3-none-any.whl"
PART = "part-2.0-py3-none-any.whl"
UV = f"uv-{version('uv')}-py3-none-any.whl"
WANTED = replace(TARGET, requirements=("thing==1.0+cu1",))


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """A package index in which the wheel `thing` requires `part`."""
    folder = tmp_path / "wheels"
    make_wheel(folder, THING, {"thing.py": b"x = 1\n" * 1000, "big": random.Random(1).randbytes(5000)}, requires="part")
    make_wheel(folder, PART, {"part.py": b"y = 2\n"})
    make_wheel(folder, UV, {"uv.py": b""})
    with serve_index(folder) as served:
        use_index(served, monkeypatch)
        yield served


def use_index(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes pip use only this index."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", f"{index.url}/simple/")
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)


def test_wheels_are_described_without_a_download(tmp_path: Path, index: Index) -> None:
    cache = tmp_path / "cache"
    found = fetch_bundle(WANTED, cache=cache, report=silent)
    wheels = [file for file in found.files if file.urls]
    assert [file.name for file in wheels] == [PART, THING, UV]
    for file in wheels:
        described = describe_file(index.folder / file.name)
        assert (file.sha256, file.size_bytes, file.unpacked_bytes) == (
            described.sha256, described.size_bytes, described.unpacked_bytes
        )  # fmt: skip
        assert not file.path.exists()
        assert index.asked_for(file.urls[0].removeprefix(index.url)) == ["bytes=-524288"]
    asked = len(index.asked)
    assert fetch_bundle(WANTED, cache=cache, report=silent) == found
    assert len(index.asked) == asked


@pytest.mark.parametrize(("refusal", "hashes"), [((401, b""), True), (None, False)])
def test_an_index_that_nodes_cannot_fetch_from(
    tmp_path: Path, index: Index, refusal: tuple[int, bytes] | None, *, hashes: bool
) -> None:
    """This machine fetches the wheels, as far as the index lets it."""
    index.refusal, index.hashes = refusal, hashes
    if refusal is not None:
        with pytest.raises(ClusterError, match="pip could not fetch"):
            fetch_bundle(WANTED, cache=tmp_path, report=silent)
        return
    bundle = fetch_bundle(WANTED, cache=tmp_path, report=silent)
    assert not any(file.urls for file in bundle.files)
    assert all(file.path.exists() for file in bundle.files)


def test_wheels_of_a_local_folder_have_no_url(tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own"
    make_wheel(own, PART, {"part.py": b"mine"})
    (index.folder / PART).unlink()
    monkeypatch.setenv("PIP_FIND_LINKS", str(own))
    found = fetch_bundle(WANTED, cache=tmp_path / "cache", report=silent)
    part, thing = found.files[:2]
    assert (part.urls, part.path.read_bytes()) == ((), (own / PART).read_bytes())
    assert len(thing.urls) == 1
    (own / PART).unlink()
    assert fetch_bundle(WANTED, cache=tmp_path / "cache", report=silent) == found
    part.path.unlink()
    with pytest.raises(ClusterError, match="pip could not fetch"):
        fetch_bundle(WANTED, cache=tmp_path / "cache", report=silent)


@pytest.fixture
def thing(tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> BundleFile:
    """A wheel that is in the index, but not in the cache."""
    monkeypatch.setattr(package_index, "FIRST_PAUSE_S", 0.01)
    described = describe_file(index.folder / THING)
    wheel = FoundWheel(url=f"{index.url}/files/{THING.replace('+', '%2B')}", sha256=described.sha256)
    found = _describe(wheel, tmp_path / "cache")
    assert replace(found, path=described.path, urls=()) == described
    index.asked.clear()
    return found


EVIL = b"open(%r, 'w')\n"
PYPROJECT = b"[build-system]\nrequires = []\nbuild-backend = 'evil'\nbackend-path = ['.']\n"


@pytest.mark.parametrize("how", ["index", "folder", "setup.py"])
def test_a_source_is_fetched_and_not_run(
    tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    ran = tmp_path / "ran"
    code = EVIL.replace(b"%r", repr(str(ran)).encode())
    content = {"setup.py": code} if how == "setup.py" else {"evil.py": code, "pyproject.toml": PYPROJECT}
    folder = tmp_path / "own" if how == "folder" else index.folder
    for version_ in ("1.0", "2.0", "3.0"):
        made = make_source(folder, f"sourced-{version_}.tar.gz", {**content, "version": version_.encode()})
    if how == "folder":
        monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    taken = tmp_path / "taken"
    taken.mkdir()
    download_source(replace(TARGET, limits=("sourced<3", "six<1")), "sourced>=1", taken)
    assert [path.name for path in taken.iterdir()] == ["sourced-2.0.tar.gz"]
    assert (taken / "sourced-2.0.tar.gz").read_bytes() == made.with_name("sourced-2.0.tar.gz").read_bytes()
    assert not ran.exists()


@pytest.mark.parametrize(
    ("files", "needs_build"),
    [
        pytest.param({"old-1.0": "wheel", "old-2.0": "source"}, "old==2.0", id="newest-release"),
        pytest.param({"old-1.0": "wheel", "old-2.0.dev1": "source"}, None, id="pre-release"),
        pytest.param({"old-1.0.dev1": "wheel", "old-1.0": "source"}, "old==1.0", id="wheel-of-pre-release"),
        pytest.param(
            {"old-1.0": "wheel", "old-2.0": "wheel needs sub==4.9.*", "sub-4.9.3": "source"},
            "sub==4.9.3",
            id="dependency",
        ),
        pytest.param({"old-1.0": "source"}, "old==1.0", id="no-wheel"),
        pytest.param({"old-1.0": "wheel", "numpy-1.0": "wheel", "numpy-2.0": "source"}, None, id="ours"),
    ],
)
def test_the_newest_release_is_chosen(
    tmp_path: Path,
    index: Index,
    files: dict[str, str],
    needs_build: str | None,
) -> None:
    """As pip by hand; a source is built elsewhere, and none of it runs here."""
    ran = tmp_path / "ran"
    for name, kind in files.items():
        if kind == "source":
            make_source(index.folder, f"{name}.tar.gz", {"setup.py": EVIL.replace(b"%r", repr(str(ran)).encode())})
        else:
            needs = kind.removeprefix("wheel").removeprefix(" needs ")
            make_wheel(index.folder, f"{name}-py3-none-any.whl", {"x.py": b""}, requires=needs)
    asked: list[str] = []

    def build(_find: object, _target: WheelTarget, requirement: str) -> BundleFile:
        asked.append(requirement)
        return describe_file(make_wheel(tmp_path / "built", f"{requirement.replace('==', '-')}-py3-none-any.whl", {}))

    target = replace(TARGET, requirements=("old", *(["numpy"] if "numpy-1.0" in files else [])))
    bundle = fetch_bundle(target, cache=tmp_path / "cache", report=silent, build=build)
    assert asked == ([needs_build] if needs_build else [])
    newest = max(name for name in files if name.startswith("old") and (name == "old-1.0" or "dev" not in name))
    assert f"{newest}-py3-none-any.whl" in [wheel.name for wheel in bundle.wheels]
    assert not ran.exists()


def test_a_source_beside_the_cpu_build_of_pytorch(tmp_path: Path, index: Index) -> None:
    """A package that needs a build is no reason to fetch the build for GPUs."""
    make_wheel(index.folder, "torch-2.0-py3-none-any.whl", {})
    make_wheel(index.folder, "torch-2.0+cpu-py3-none-any.whl", {})
    make_source(index.folder, "old-1.0.tar.gz", {})
    wheel = describe_file(make_wheel(tmp_path / "built", "old-1.0-py3-none-any.whl", {}))
    target = replace(TARGET, framework="pytorch", requirements=("torch==2.0", "old"), without_gpus=True)
    bundle = fetch_bundle(target, cache=tmp_path / "cache", report=silent, build=lambda *_: wheel)
    assert bundle.torch is not None
    assert bundle.torch.version == "2.0+cpu"


def test_a_source_that_cannot_be_fetched(tmp_path: Path, index: Index) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(NoSourceError, match="No matching distribution found for absent"):
        download_source(TARGET, "absent>=1", tmp_path / "taken")
    make_source(index.folder, "sourced-1.0.tar.gz", {})
    index.flip = True
    with pytest.raises(ClusterError, match=r"sourced-1.0.tar.gz: the download does not have the hash"):
        download_source(TARGET, "sourced", tmp_path / "taken")


def test_a_server_without_ranges(tmp_path: Path, index: Index, thing: BundleFile) -> None:
    index.ranges = False
    file = _describe(FoundWheel(url=thing.urls[0], sha256=thing.sha256), tmp_path)
    assert (file.size_bytes, file.unpacked_bytes) == (thing.size_bytes, UNPACKED_TIMES * thing.size_bytes)


@pytest.mark.parametrize("trouble", ["none", "failing", "cutting"])
def test_a_file_is_downloaded_once(index: Index, thing: BundleFile, trouble: str) -> None:
    if trouble != "none":
        setattr(index, trouble, 2)
    for _ in range(2):
        bring_here(thing)
        assert describe_file(thing.path).sha256 == thing.sha256
    assert len(index.asked) == (1 if trouble == "none" else 3)


def test_files_are_fetched_as_one_step(index: Index, thing: BundleFile) -> None:
    """However many they are; each is fetched once, and an error is that of its own file."""
    del index
    events: list[Event] = []
    fetches = Fetches(events.append)
    lost = replace(thing, path=thing.path.with_name("lost"), sha256="0" * 64)
    fetches.begin([thing, lost, thing])
    fetches.wait(thing)
    with pytest.raises(ClusterError, match="lost could not be fetched"):
        fetches.wait(lost)
    fetches.wait(thing)
    assert [event.kind for event in events if event.kind != "progress"] == ["start", "done"]
    assert f"{WHAT}: 2 files, 0 MB" in [event.what for event in events]
    running: tuple[str, ...] = ()
    for event in events:
        running = still_running(running, event)
    assert running == ()


def test_a_damaged_download_is_discarded(tmp_path: Path, index: Index, thing: BundleFile) -> None:
    index.flip = True
    with pytest.raises(ClusterError, match=r"thing-1.0\+cu1.* could not be fetched: .* has the SHA-256") as raised:
        bring_here(thing)
    assert raised.value.hint is not None
    assert [path for path in (tmp_path / "cache" / "wheels").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("damaged", ["", "[", "[{}]", "{}x", '[{"name": 1}]'])
def test_a_damaged_list_counts_as_missing(tmp_path: Path, thing: BundleFile, damaged: str) -> None:
    cache = tmp_path / "cache"
    remember(cache, "bundles/x", [thing])
    assert find_kept(cache, "bundles/x", report=silent) == (thing,)
    (cache / "bundles" / "x.json").write_text(damaged)
    assert find_kept(cache, "bundles/x", report=silent) is None


def test_the_end_of_a_wheel_shows_its_unpacked_size(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, THING, {f"{n}.py": random.Random(n).randbytes(3000) for n in range(20)})
    data = wheel.read_bytes()
    assert find_unpacked_bytes(data[-10_000:]) == describe_file(wheel).unpacked_bytes
    assert find_unpacked_bytes(data[-100:]) is None
    assert find_unpacked_bytes(b"") is None


def test_parse_report() -> None:
    items = [
        {"download_info": {"url": "https://x/a.whl", "archive_info": {"hashes": {"sha256": "12"}}}},
        {"download_info": {"url": "https://x/b.whl", "archive_info": {}}},
    ]
    assert parse_report({"install": items}) == (
        FoundWheel(url="https://x/a.whl", sha256="12"),
        FoundWheel(url="https://x/b.whl", sha256=""),
    )


@pytest.mark.parametrize(
    ("without_gpus", "wheels", "chosen", "announced"),
    [
        (True, ["2.0", "2.0+cpu", "2.0+cu9"], "2.0+cpu", False),
        (True, ["2.0"], "2.0", True),
        pytest.param(False, ["2.0", "2.0+cpu", "2.0+cu9"], "2.0+cu9", False, marks=pytest.mark.slow),
    ],
)
def test_nodes_without_gpus_get_the_cpu_build_of_pytorch(
    tmp_path: Path,
    index: Index,
    monkeypatch: pytest.MonkeyPatch,
    *,
    without_gpus: bool,
    wheels: list[str],
    chosen: str,
    announced: bool,
) -> None:
    """Where the index has none, the size of the build for GPUs is said before it is fetched."""
    monkeypatch.setattr("bootstrap.environment.bundle.LARGE_GB", 0.0)
    # With it, pip calls a build that does not exist a conflict.
    (tmp_path / "limits.txt").write_text("torch<3\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "limits.txt"))
    for label in wheels:
        make_wheel(index.folder, f"torch-{label}-py3-none-any.whl", {"torch.py": b"x = 1\n"})
    target = replace(TARGET, framework="pytorch", requirements=("torch==2.0",), without_gpus=without_gpus)
    events: list[Event] = []
    bundle = fetch_bundle(target, cache=tmp_path / "cache", report=events.append)
    assert bundle.torch is not None
    assert bundle.torch.version == chosen
    said = [event.what for event in events if "GB of wheels, with CUDA" in event.what]
    running: tuple[str, ...] = ()
    for event in events:
        running = still_running(running, event)
    assert running == ()  # although the search for the CPU build failed
    assert len(said) == announced
    again = fetch_bundle(target, cache=tmp_path / "cache", report=events.append)
    assert again.digest == bundle.digest
    assert len([event for event in events if "GB of wheels" in event.what]) == announced
