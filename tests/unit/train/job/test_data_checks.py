"""Problems of a job's data, detected before it starts."""

from typing import Any

import pytest
from msgspec.structs import replace

from train.job.checks import Problem, find_data_problems
from train.job.survey import Data

URL = "s3://bucket/x/"
GOOD = Data(region="eu-west-1")
DENIED = "s3://bucket/x/train/a.rec cannot be read: AccessDenied: not authorized"


def problems(more: dict[str, Any], *, url: str = URL, nodes_credentials: bool = False) -> list[Problem]:
    data = replace(GOOD, **more)
    return list(find_data_problems(data, url, region="eu-west-1", nodes_credentials=nodes_credentials))


@pytest.mark.parametrize(
    ("more", "message", "hint", "certain"),
    [
        ({"exists": False}, "there is no such bucket", "put --create-bucket FOLDER s3://bucket/x/", True),
        ({"region": "us-west-2"}, "is in us-west-2, but the nodes are in eu-west-1", 'region = "us-west-2"', True),
        # Outside AWS, a region may be no more than a name.
        ({"region": "us-west-2", "at_aws": False}, "the bucket is in us-west-2", "cluster data get", False),
        ({"refused": DENIED}, "x/train/a.rec cannot be read: AccessDenied: not", "cluster iam-policy", True),
        ({"is_empty": True}, "there is nothing to read", "cluster data put FOLDER s3://bucket/x/", True),
    ],
)  # fmt: skip
def test_each_problem_says_what_to_do(more: dict[str, Any], message: str, hint: str, *, certain: bool) -> None:
    (problem,) = problems(more)
    assert message in problem.message
    assert hint in problem.hint
    assert problem.certain == certain


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"exists": False}, "there is no such folder"),
        ({"is_empty": True}, "there is nothing to read"),
        ({"region": None}, None),
    ],
)
def test_folders_on_volumes(more: dict[str, Any], message: str | None) -> None:
    found = problems(more, url="/shared/data")
    assert [problem.message for problem in found] == ([f'data.url = "/shared/data": {message}'] if message else [])


def test_a_refusal_to_this_machine_does_not_concern_nodes_with_their_own_credentials() -> None:
    assert not problems({"refused": DENIED}, nodes_credentials=True)
