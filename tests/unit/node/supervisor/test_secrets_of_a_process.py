"""The AWS credentials of a process: the user's own, or the job's."""

import pytest

from node.supervisor.processes import with_secrets

OURS = {"AWS_ACCESS_KEY_ID": "ASIAOURS", "AWS_SECRET_ACCESS_KEY": "ours", "AWS_SESSION_TOKEN": "ours", "MORE": "ours"}


@pytest.mark.parametrize(
    ("own", "found"),
    [
        ({"A": "b", "S3_REGION": "eu-west-1"}, {"A": "b", "S3_REGION": "eu-west-1", **OURS}),
        (
            {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "mine"},
            {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "mine", "MORE": "ours"},
        ),
        ({"AWS_ACCESS_KEY_ID": ""}, {"AWS_ACCESS_KEY_ID": "", "MORE": "ours"}),
        ({"AWS_SESSION_TOKEN": "mine"}, {"AWS_SESSION_TOKEN": "mine", "MORE": "ours"}),
        ({"AWS_PROFILE": "other"}, {"AWS_PROFILE": "other", "MORE": "ours"}),
        ({"MORE": "mine"}, {**OURS, "MORE": "mine"}),
    ],
)
def test_the_users_aws_credentials_replace_the_jobs(own: dict[str, str], found: dict[str, str]) -> None:
    assert with_secrets(own, OURS) == found


def test_staging_uses_the_users_keys_but_no_profile() -> None:
    staged = {"CLUSTER_DATA_CREDENTIALS": "instance"}
    assert "CLUSTER_DATA_CREDENTIALS" not in with_secrets({**staged, "AWS_ACCESS_KEY_ID": "AKIA"}, OURS)
    assert with_secrets({**staged, "AWS_PROFILE": "other"}, OURS)["CLUSTER_DATA_CREDENTIALS"] == "instance"
