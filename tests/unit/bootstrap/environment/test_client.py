"""This project's own command on the head: its Python and its packages."""

from importlib.metadata import version
from pathlib import Path

import pytest
from msgspec.structs import replace

from bootstrap.environment.bundle import Bundle, fetch_bundle, find_records
from bootstrap.environment.client import PACKAGES, choose_client, make_client, name_client
from bootstrap.environment.facts import FoundFramework, FoundPython, NodeFacts
from bootstrap.environment.file_cache import describe_file, render_record
from bootstrap.transfer.tree import file_of_bytes, make_tree
from foundation.errors import ClusterError
from foundation.progress import silent
from index_server import make_wheel
from node_facts import BUNDLE, FACTS, TARGET

OLD = FoundPython(path="/usr/bin/python3", version=(3, 10))
NEW = FoundPython(path="/usr/bin/python3.13", version=(3, 13))
OF_TORCH = FoundFramework(
    name="torch",
    version="2.13",
    cuda=None,
    numpy="",
    python=FoundPython(path="/opt/pytorch/bin/python3", version=(3, 12)),
)


@pytest.mark.parametrize(
    ("facts", "path", "chosen"),
    [
        (FACTS, "/usr/bin/python3", (3, 11)),
        (replace(FACTS, pythons=(OLD, NEW)), NEW.path, (3, 13)),
        (replace(FACTS, pythons=(OLD,), frameworks=(OF_TORCH,)), "/opt/pytorch/bin/python3", (3, 12)),
        (replace(FACTS, pythons=(OLD,)), None, (3, 11)),  # none that fits: a packed one
    ],
)
def test_the_python(facts: NodeFacts, path: str | None, chosen: tuple[int, int]) -> None:
    target, python = choose_client(facts, node="node-0")
    assert (python.path, python.version, target.python_version) == (path, chosen, chosen)
    assert target.managed_python is (path is None)
    assert target.requirements == tuple(f"{name}=={version(name)}" for name in PACKAGES)


def test_a_node_on_which_no_python_runs() -> None:
    with pytest.raises(ClusterError, match=r"node-0: it has no Python 3\.11 or newer"):
        choose_client(replace(FACTS, pythons=(OLD,), glibc=(2, 12)), node="node-0")


def test_its_packages_lie_beside_its_code(tmp_path: Path) -> None:
    files = {"thing.py": b"x = 1\n", "thing-1.0.data/scripts/thing": b"#!/bin/sh\n", "ours.py": b"theirs"}
    data = {
        f"botocore/data/{name}": b"{}" for name in ("endpoints.json", "ec2/1/service-2.json", "acm/1/service-2.json")
    }
    files |= data
    wheel = describe_file(make_wheel(tmp_path, "thing-1.0-py3-none-any.whl", files))
    code = make_tree([file_of_bytes("ours.py", b"x = 2\n")])
    made = make_client(code, [wheel])
    content = {file.path: file.source for file in made.files}
    assert (content["thing.py"], content["ours.py"], "bin/thing" in content) == (b"x = 1\n", b"x = 2\n", False)
    assert set(data) - set(content) == {"botocore/data/acm/1/service-2.json"}
    assert made.digest == name_client(code, [wheel]) != code.digest


def test_an_environment_is_found_again_from_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head is in this position: it has the files, but no package index."""
    wheels = tmp_path / "index"
    monkeypatch.setattr("bootstrap.environment.bundle.version", lambda _: "9.9")
    make_wheel(wheels, "thing-1.0-py3-none-any.whl", {"thing.py": b"x = 1\n"})
    make_wheel(wheels, "uv-9.9-py3-none-manylinux2014_x86_64.whl", {"uv-9.9.data/scripts/uv": b"#!/bin/sh\n"})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    target = replace(TARGET, requirements=("thing",))
    bundle = fetch_bundle(target, cache=tmp_path / "here", report=silent)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))
    head = tmp_path / "head"
    head.mkdir()
    (head / "wheels").symlink_to(tmp_path / "here/wheels")

    records = find_records(bundle)

    for key, files in records.items():
        (head / f"{key}.json").parent.mkdir(exist_ok=True)
        (head / f"{key}.json").write_text(render_record(files))
    again = fetch_bundle(target, cache=head, report=silent)
    assert (again.digest, file_names(again)) == (bundle.digest, file_names(bundle))


def file_names(bundle: Bundle) -> list[str]:
    return [file.name for file in bundle.files]


def test_a_packed_python_is_recorded_too() -> None:
    packed = replace(BUNDLE.files[0], path=Path("python-3.11.9.tar.gz"), sha256="5" * 64)
    target = replace(TARGET, managed_python=True)
    records = find_records(Bundle(target=target, files=(*BUNDLE.files, packed)))
    assert records["pythons/cpython-3.11-linux-x86_64-gnu"] == (packed,)
    [wheels] = [files for key, files in records.items() if key.startswith("bundles/")]
    assert wheels == BUNDLE.files[:2]  # without the module that ships with this project
