"""The names of images, and which images nodes take from each other."""

import pytest

from bootstrap.container.chain import is_chained
from bootstrap.container.reference import Reference, parse_reference

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("image", "expected", "shown"),
    [
        ("ubuntu", Reference("docker.io", "library/ubuntu", "latest"), "docker.io/library/ubuntu:latest"),
        ("me/train", Reference("docker.io", "me/train", "latest"), "docker.io/me/train:latest"),
        ("index.docker.io/me/a:1", Reference("docker.io", "me/a", "1"), "docker.io/me/a:1"),
        ("host:5000/a/b:1", Reference("host:5000", "a/b", "1"), "host:5000/a/b:1"),
        ("localhost:5000/a:1", Reference("localhost:5000", "a", "1"), "localhost:5000/a:1"),
        ("localhost/a:1", Reference("localhost", "a", "1"), "localhost/a:1"),
        (f"r.example.com/a@{DIGEST}", Reference("r.example.com", "a", "", DIGEST), f"r.example.com/a@{DIGEST}"),
        (f"r.example.com/a:1@{DIGEST}", Reference("r.example.com", "a", "1", DIGEST), f"r.example.com/a@{DIGEST}"),
    ],
)
def test_a_name_is_completed(image: str, expected: Reference, shown: str) -> None:
    assert parse_reference(image) == expected
    assert parse_reference(image).is_local == (image == "localhost/a:1")
    assert str(parse_reference(image)) == shown
    assert parse_reference(shown) == parse_reference(str(parse_reference(shown)))


@pytest.mark.parametrize(
    "image", ["Ubuntu", "a b", "a:", "a@sha256:12", "a//b", "host:port/a", "a$(id)", "--privileged"]
)
def test_what_is_no_name_is_refused(image: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_reference(image)


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
