"""What of S3 a job needs, and what is said of its credentials."""

import pytest

from provision.aws.iam_policy import S3Scope
from train.job.config import DataConfig, TrainConfig
from train.job.scope import find_scope, render_access
from train.s3.environment import S3Access

DATA = DataConfig(url="s3://data/digits/", results="s3://results/models")


def test_what_data_names_is_all_where_nothing_else_is_named() -> None:
    assert find_scope(TrainConfig(args=("--lr", "0.1")), DATA) == S3Scope(data_url=DATA.url, results_url=DATA.results)
    assert find_scope(TrainConfig(), DataConfig()).is_empty


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--data-train", "s3://more/train.rec"], ["s3://more/train.rec"]),
        (["--data-train=s3://more/a.rec;s3://more/b.rec"], ["s3://more/a.rec", "s3://more/b.rec"]),
        (["s3://more/a,s3://other/b"], ["s3://more/a", "s3://other/b"]),
        (["sh", "-c", "train --data 's3://more/it is/' && ls \"s3://other/b/\""], ["s3://more/it", "s3://other/b/"]),
        (["s3://more/a/", "s3://more/a/b", "s3://more/a"], ["s3://more/a"]),  # the beginning of the others
        (["s3://more", "s3://moreover/a"], ["s3://more/", "s3://moreover/a"]),
        (["s3://more/run-$N/", "s3://$BUCKET/a", "s3://more/x*?"], ["s3://more/run-", "s3://more/x"]),
        (["s3://data/digits/train/", "s3://data/digits", "s3://results/models/old"], []),  # of [data]
        (["s3://data/digits-2/"], ["s3://data/digits-2/"]),
        (["s3://"], []),
    ],
)
def test_what_a_jobs_words_name_is_read(words: list[str], found: list[str]) -> None:
    assert list(find_scope(TrainConfig(args=tuple(words)), DATA).also_read) == found
    assert list(find_scope(TrainConfig(args=("s3://not/run",)), DATA, command=words).also_read) == found


def test_what_its_variables_and_set_up_commands_name_is_read() -> None:
    config = TrainConfig(
        env={"A": "s3://of-all/a"},
        env_worker={"B": "x s3://of-workers/b y"},
        env_server={"C": "s3://of-servers/c"},
        setup=("aws s3 cp s3://of-setup/d .",),
    )
    scope = find_scope(config, DATA)
    assert scope.also_read == ("s3://of-setup/d",)
    assert scope.read_secretly == ("s3://of-all/a", "s3://of-servers/c", "s3://of-workers/b")
    assert not scope.is_empty


@pytest.mark.parametrize(
    "words",
    [
        ("--model-prefix", "s3://saved/net"),
        ("--model-prefix=s3://saved/net",),
        ("sh", "-c", "python train.py --model_prefix 's3://saved/net' --lr 1"),
    ],
)
def test_where_a_model_is_saved_is_written(words: tuple[str, ...]) -> None:
    scope = find_scope(TrainConfig(args=words), DATA)
    assert (scope.also_written, scope.also_read) == (("s3://saved/net",), ())
    assert find_scope(TrainConfig(args=("--model-prefix", "s3://results/models/net")), DATA).also_written == ()


SECRETS = {"AWS_ACCESS_KEY_ID": "a"}
SCOPE = S3Scope(data_url="s3://a/b/", results_url="s3://c/", also_read=("s3://d/e",))


@pytest.mark.parametrize(
    ("access", "scope", "said"),
    [
        (
            S3Access(env={}, secrets=SECRETS, left_s=36 * 3600 - 2),
            SCOPE,
            "credentials: temporary for 36 h, to read s3://a/b/, s3://d/e and write s3://c/",
        ),
        (  # variables may be secrets
            S3Access(env={}, secrets=SECRETS),
            S3Scope(read_secretly=("s3://d/e",)),
            "credentials: temporary, to read what your variables name",
        ),
        (S3Access(env={}, secrets=SECRETS), S3Scope(data_url="s3://a/b/"), "credentials: temporary, to read s3://a/b/"),
        (S3Access(env={}, secrets=SECRETS, left_s=3600, warning="x"), SCOPE, "credentials: yours for 1 h, not limited"),
        (S3Access(env={}, secrets={}, of_nodes=True), SCOPE, "credentials: those of the nodes' instance profile"),
        (
            S3Access(env={}, secrets={}),
            S3Scope(),
            "credentials: none, since neither [data] nor the job's arguments and variables name a place in S3",
        ),
    ],
)
def test_credentials_are_shown_before_the_start(access: S3Access, scope: S3Scope, said: str) -> None:
    assert render_access(access, scope) == said
