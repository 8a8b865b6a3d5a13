"""What a user reads when AWS refuses a call: the exact stderr of the real command."""

from collections.abc import Iterator

import pytest

from foundation.progress import silent
from project import REPOSITORY, Project
from sandbox import control

pytestmark = pytest.mark.sandbox

QUOTA = "L-1216C47A Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Yields a project whose sandbox has no hosts: every command here fails before it needs one."""
    project = Project(tmp_path_factory.mktemp("phantoms"))
    project.write((REPOSITORY / "cluster.toml").read_text().replace('# hosts = "real"', 'hosts = "none"'))
    project.run("sandbox", "start")
    try:
        yield project
    finally:
        control.reset(project.directory, report=silent)


@pytest.fixture
def phantoms(shared: Project) -> Iterator[Project]:
    """Yields the project. Afterwards no fault is armed, and nothing of the cluster is left."""
    kept = (shared.directory / "cluster.toml").read_text()
    yield shared
    shared.write(kept)
    control.disarm_faults(shared.directory, "all")
    shared.run("down", "--yes")


def refusal(project: Project, *words: str, code: int = 1) -> list[str]:
    """Returns the lines of a command's error: what happened, its details, and what to try."""
    lines = project.run(*words, code=code).stderr.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("error: "))
    return lines[start:]


def set_provision(project: Project, key: str, value: str) -> None:
    text = (project.directory / "cluster.toml").read_text()
    kept = [line for line in text.splitlines() if line.lstrip("# ").partition(" ")[0] != key]
    kept.insert(kept.index("[provision]") + 1, f'{key} = "{value}"')
    project.write("\n".join(kept) + "\n")


@pytest.mark.slow
def test_a_missing_image(phantoms: Project) -> None:
    set_provision(phantoms, "ami", "ami-0fedcba9876543210")
    assert refusal(phantoms, "up", "--yes", code=2) == [
        (
            "error: [provision] ami = \"ami-0fedcba9876543210\": AWS says: The image id '[ami-0fedcba9876543210]' does "
            "not exist (InvalidAMIID.NotFound): us-east-1 has no such image (an image belongs to one region)"
        ),
        '  try: set ami = "auto" in cluster.toml, or correct region',
    ]


@pytest.mark.slow
def test_a_region_other_than_the_sandboxs(phantoms: Project) -> None:
    set_provision(phantoms, "region", "eu-west-1")
    assert refusal(phantoms, "status") == [
        'error: the sandbox of this folder runs in region us-east-1, and [provision] region = "eu-west-1"',
        '  try: set region = "us-east-1", or remove the sandbox and its content: cluster sandbox reset',
    ]


def test_a_limit_of_the_account(phantoms: Project) -> None:
    phantoms.run("sandbox", "fault", "vcpu-limit")
    said, quota, advice = refusal(phantoms, "up", "--yes")
    assert said.startswith("error: AWS says: You have requested more vCPU capacity than your current vCPU limit of 0 ")
    assert said.endswith(" (VcpuLimitExceeded, while launching nodes)")
    assert quota == f"  {QUOTA}: 8 vCPUs needed, 0 in use, limit 100000"
    assert advice == (
        "  try: reduce or change [provision] nodes, instance_type or market, or request a higher limit: "
        "aws service-quotas request-service-quota-increase --service-code ec2 --quota-code L-1216C47A --desired-value 8"
    )
    assert "left     nothing" in phantoms.run("down", "--yes").stdout


def test_no_capacity_anywhere(phantoms: Project) -> None:
    phantoms.run("sandbox", "fault", "capacity")
    said, *places, advice = refusal(phantoms, "up", "--yes")
    assert said == "error: no capacity for 2 nodes in any place that was tried, and nothing was launched:"
    assert places == [
        f"  2 x c5.xlarge on demand in us-east-1{zone}: We currently do not have sufficient c5.xlarge capacity "
        "(InsufficientInstanceCapacity)"
        for zone in "abcdf"  # and not e, where AWS has no c5
    ]
    assert advice == (
        "  try: wait, or allow more choices: [provision] instance_types, market, regions, min_nodes, capacity_wait_s"
    )


def test_missing_permissions_are_reported_before_anything_is_made(phantoms: Project) -> None:
    before = phantoms.run("sandbox", "log").stdout
    for action in ("CreatePlacementGroup", "TerminateInstances"):
        phantoms.run("sandbox", "fault", "unauthorized", f"action={action}")
    assert refusal(phantoms, "up", "--yes") == [
        (
            "error: nothing was made: these credentials lack permissions that `cluster up` and `cluster down` need: "
            "ec2:CreatePlacementGroup, ec2:TerminateInstances"
        ),
        "  try: ask the account's administrator; cluster iam-policy prints all that are needed",
    ]
    log = phantoms.run("sandbox", "log").stdout
    assert log.startswith(before)
    creations = [line for line in log.removeprefix(before).splitlines() if " ec2 Create" in line]
    assert creations
    assert all("dry run" in line or "UnauthorizedOperation" in line for line in creations)
