"""The images that nodes fetch from each other, and an image's file in a node's store."""

from pathlib import Path

import pytest

from bootstrap.container.chain import is_chained
from bootstrap.container.reference import parse_reference
from node.setup.containers import archive

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


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / ".cluster"


def test_a_failed_save_leaves_nothing(home: Path) -> None:
    def fail(path: str) -> None:
        Path(path).write_bytes(b"half")
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space left"):
        archive.save(IMAGE, fail)
    assert [path.name for path in home.rglob("*")] == ["incoming"]
