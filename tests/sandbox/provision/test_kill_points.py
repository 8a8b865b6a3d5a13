"""`up`, `resize` and `down`, each killed by SIGKILL at every API call and fsync: nothing is leaked, nothing doubled.

tests/unit/provision/test_crashes.py does the same within one process, with a kill before and after every point, each
followed by the same command and by `down`. Here processes are really killed, against a real server. `make test` takes
one point of `down`; `up` is killed on hosts in test_end_to_end.py. `make test-all` takes all points of both and of
`resize`, before and after, each followed by both commands. All cases run side by side.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pytest

from ec2_sandbox import control
from forked import Act, Ending, Kill, find_changes, read_descriptions, run
from foundation.progress import silent
from sandbox_steps import RunningSandbox, enter, start_sandbox

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import FilterTypeDef

pytestmark = pytest.mark.sandbox

AT_ONCE = max(3, os.cpu_count() or 1)
TAG = "cluster:name"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """`verb` on a cluster of `before` nodes, which then has `after` nodes (0: the cluster is gone)."""

    verb: str
    before: int
    after: int

    @property
    def name(self) -> str:
        """The scene's name among the others."""
        return f"{self.verb}-{self.before}-{self.after}"


UP = Scene(verb="up", before=0, after=2)
GROW = Scene(verb="resize", before=2, after=3)
SHRINK = Scene(verb="resize", before=2, after=1)
DOWN = Scene(verb="down", before=2, after=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One kill. again: the same command follows it, and then `down`; otherwise only `down`."""

    scene: Scene
    kill: Kill
    again: bool


def find_resources(name: str) -> Counter[str]:
    """Counts everything in the account with the cluster's tag or name, without the code under test."""
    ec2, iam = boto3.client("ec2"), boto3.client("iam")
    tagged: list[FilterTypeDef] = [{"Name": f"tag:{TAG}", "Values": [name]}]
    instances = [
        instance
        for reservation in ec2.describe_instances(Filters=tagged)["Reservations"]
        for instance in reservation["Instances"]
        if instance["State"]["Name"] != "terminated"
    ]
    roles = [role["RoleName"] for role in iam.list_roles()["Roles"]]
    profiles = [profile["InstanceProfileName"] for profile in iam.list_instance_profiles()["InstanceProfiles"]]
    named = f"cluster-{name}"
    return +Counter(
        {
            "instances": len(instances),
            "volumes": len(ec2.describe_volumes(Filters=tagged)["Volumes"]),
            "interfaces": len(ec2.describe_network_interfaces(Filters=tagged)["NetworkInterfaces"]),
            "groups": sum(g["GroupName"] == named for g in ec2.describe_security_groups()["SecurityGroups"]),
            "keys": sum(key["KeyName"] == named for key in ec2.describe_key_pairs()["KeyPairs"]),
            "placements": sum(g["GroupName"] == named for g in ec2.describe_placement_groups()["PlacementGroups"]),
            "roles": sum(role == f"cluster-us-east-1-{name}" for role in roles),
            "profiles": sum(profile == f"cluster-us-east-1-{name}" for profile in profiles),
        }
    )


def complete(nodes: int) -> Counter[str]:
    shared = {"groups": 1, "keys": 1, "placements": 1, "roles": 1, "profiles": 1}
    disks = nodes + 1  # with the head's volume
    return Counter({"instances": nodes, "volumes": disks, "interfaces": nodes, **shared}) if nodes else Counter()


def act(scene: Scene, name: str, folder: Path) -> Act:
    return Act(verb=scene.verb, name=name, nodes=scene.after or scene.before, files=folder / name)


def prepare(scene: Scene, name: str, folder: Path) -> None:
    if scene.before:
        run(Act(verb="up", name=name, nodes=scene.before, files=folder / name))


def end(name: str, folder: Path) -> None:
    run(Act(verb="down", name=name, nodes=1, files=folder / name))


def count_points(scene: Scene, folder: Path) -> tuple[str, ...]:
    name = scene.name
    prepare(scene, name, folder)
    points = run(act(scene, name, folder)).points
    end(name, folder)
    return points


def check(case: Case, number: int, folder: Path) -> str | None:
    """Runs a case; returns what is wrong after it, or None. Leaves nothing behind."""
    name = f"kill-{number}"
    prepare(case.scene, name, folder)
    ending: Ending = run(act(case.scene, name, folder), case.kill)
    wrong: list[str] = []
    # A command that polled less often than in the counted run may end before its kill. That is like a kill at its end.
    if not ending.killed and (case.kill.changes or len(ending.points) > case.kill.point):
        wrong.append(f"{case}: the command came through, {len(ending.points)} points")
    if case.again:
        run(act(case.scene, name, folder))
        found = find_resources(name)
        if found != complete(case.scene.after):
            wrong.append(f"{case}: after the second run there are {dict(found)}")
    end(name, folder)
    if left := find_resources(name):
        wrong.append(f"{case}: leaked {dict(left)}")
    if (folder / name).exists():
        wrong.append(f"{case}: left {sorted(path.name for path in (folder / name).iterdir())} on this machine")
    return "; ".join(wrong) or None


def plan_cases(scene: Scene, points: tuple[str, ...], *, everything: bool) -> list[Case]:
    """Plans a kill before and after every point, each followed by both commands; or one kill in the middle.

    The state that a kill leaves changes only at calls that change something, and at each fsync: just before one of
    these is the same as just after the previous one. The one kill counts only such points, because the number of polls
    until an instance runs varies.
    """
    if not everything:
        middle = (len(find_changes(points)) - 1) // 2
        return [Case(scene=scene, kill=Kill(point=middle, before=False, changes=True), again=True)]
    cases: list[Case] = []
    for number in range(len(points)):
        for before in (True, False):
            cases += [Case(scene=scene, kill=Kill(point=number, before=before), again=again) for again in (True, False)]
    return cases


def run_cases(scenes: Sequence[Scene], folder: Path, *, everything: bool) -> tuple[list[str], list[str]]:
    """Runs the cases of all scenes side by side; returns a summary of each scene, and what went wrong."""
    read_descriptions()
    # Processes, not threads: each of them forks, and a fork beside other threads may inherit a lock that stays locked.
    with ProcessPoolExecutor(AT_ONCE, mp_context=get_context("fork")) as pool:
        counted = list(pool.map(count_points, scenes, [folder] * len(scenes)))
        planned = [
            plan_cases(scene, points, everything=everything) for scene, points in zip(scenes, counted, strict=True)
        ]
        cases = [case for plan in planned for case in plan]
        wrong = [found for found in pool.map(check, cases, range(len(cases)), [folder] * len(cases)) if found]
    assert all(len(points) > 10 for points in counted)
    results = [
        f"{scene.name}: {len(points)} points, {len(plan)} processes killed"
        for scene, points, plan in zip(scenes, counted, planned, strict=True)
    ]
    return results, wrong


@pytest.fixture(scope="module")
def empty_account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSandbox]:
    """A sandbox of these tests' own, because one that has had a thousand instances lists them all each time."""
    folder = tmp_path_factory.mktemp("kill-points")
    try:
        yield start_sandbox(folder, hosts="none")
    finally:
        control.reset(folder, report=silent)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("scenes", "everything"),
    [
        pytest.param((DOWN,), False, id="one"),
        pytest.param((UP, GROW, SHRINK, DOWN), True, id="everything", marks=pytest.mark.slow),
    ],
)
def test_killed_at_every_point(
    empty_account: RunningSandbox,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
    scenes: tuple[Scene, ...],
    *,
    everything: bool,
) -> None:
    enter(empty_account, monkeypatch)
    results, wrong = run_cases(scenes, tmp_path, everything=everything)
    record_property("result", f"{'; '.join(results)}; {len(wrong)} leaks or doubles")
    assert not wrong, "\n".join(wrong)
