"""The images that nodes fetch from each other, and an image's file in a node's store."""

import pytest

from bootstrap.container.chain import is_chained
from bootstrap.container.reference import parse_reference

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
