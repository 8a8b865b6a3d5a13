"""The names of images."""

import pytest

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
