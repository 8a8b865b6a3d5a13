"""[queue]: a job's request to a batch scheduler, and whether its walltime agrees with [train] max_duration."""

import tomllib
from typing import Any

import pytest

from cluster.config import parse_config
from foundation.errors import ConfigError
from foundation.settings import check
from train.job.config import QueueConfig


@pytest.mark.parametrize(
    ("walltime", "max_duration_s", "walltime_s"),
    [("auto", None, None), ("auto", 45, 60), ("auto", 3601, 3660), (90, 60, 90), ("2h", 7200, 7200)],
)
def test_the_walltime(walltime: str | int, max_duration_s: int | None, walltime_s: int | None) -> None:
    queue = check(QueueConfig, {"walltime": walltime}, source="cluster.toml")
    assert queue.find_walltime_s(max_duration_s) == walltime_s
    assert queue.find_conflict(max_duration_s) is None


def test_a_job_that_may_run_longer_than_its_walltime_is_refused() -> None:
    text = 'name = "x"\n[train]\nmax_duration = "2h"\n[queue]\nwalltime = "90m"\n'
    with pytest.raises(ConfigError) as raised:
        parse_config(tomllib.loads(text), source="cluster.toml")
    assert raised.value.message == (
        "cluster.toml: [train] max_duration is 2h, but [queue] walltime is 90m: the scheduler would end the job first"
    )
    parse_config(tomllib.loads(text), source="cluster.toml", overrides={"train.max_duration": "90m"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", "x\n#SBATCH --uid=0"),
        ("account", "$(id)"),
        ("walltime", "none"),
        ("options", ["--a\nrm -rf /"]),
        ("partition", "gpu"),
    ],
)
def test_wrong_values_are_refused(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=key):
        check(QueueConfig, {key: value}, source="cluster.toml")
