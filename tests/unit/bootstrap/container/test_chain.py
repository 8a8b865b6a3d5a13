"""The images that nodes fetch from each other, and an image's file in a node's store."""

import hashlib
from pathlib import Path

import pytest

from bootstrap.container.chain import is_chained
from bootstrap.container.reference import parse_reference
from node.setup.containers import engine
from node.setup.containers.prepare import Node
from node_facts import make_programs

IMAGE = f"sha256:{'5e' * 32}"
ECR = "123456789012.dkr.ecr.us-east-1.amazonaws.com/digits:1"


@pytest.mark.parametrize(
    ("image", "lacking", "chained"),
    [
        ("registry.example.com/digits:1", 0, False),
        ("registry.example.com/digits:1", 1, False),
        ("registry.example.com/digits:1", 2, True),
        ("digits", 15, True),
        (ECR, 15, False),
        ("localhost/digits:1", 0, False),
        ("localhost/digits:1", 1, True),  # which no registry has
    ],
)
def test_two_nodes_or_more_take_it_from_each_other_except_from_ecr(image: str, lacking: int, *, chained: bool) -> None:
    assert is_chained(parse_reference(image), lacking) is chained


@pytest.mark.parametrize(("end", "left"), [("exit 0", ["files", "incoming"]), ("exit 1", ["incoming"])])
def test_a_saved_image_is_in_the_store_or_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, left: list[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(engine, "SEARCH_PATH", f"{tmp_path}:/usr/bin:/bin")
    make_programs(tmp_path, podman=f"printf half; {end}")
    node = Node()
    node._engine = ["podman"]
    answer = node.answer({"save": IMAGE})
    assert sorted(path.name for path in (tmp_path / ".cluster").iterdir()) == left
    if end == "exit 0":
        sha256 = hashlib.sha256(b"half").hexdigest()
        assert answer == {"sha256": sha256, "name": "image-5e5e5e5e5e5e.tar", "size": 4}
        assert (tmp_path / ".cluster" / "files" / sha256 / answer["name"]).read_bytes() == b"half"
    assert not list((tmp_path / ".cluster" / "incoming").iterdir())
