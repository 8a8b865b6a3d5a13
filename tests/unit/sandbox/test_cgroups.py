import os
import subprocess
import uuid

import pytest

from ec2_sandbox.hosts import cgroups

SLEEPING = "echo $$ >{group}/below/cgroup.procs; sleep 600 & echo ready; wait"


@pytest.mark.skipif(os.geteuid() != 0, reason="makes control groups")
def test_removing_a_control_group_kills_its_processes() -> None:
    whole = cgroups.cgroup_of(uuid.uuid4().hex[:8])
    assert whole is not None
    group = whole / "i-1"
    cgroups.make(group, 4321)
    assert group.stat().st_uid == (group / "cgroup.procs").stat().st_uid == 4321
    (group / "below").mkdir()
    with subprocess.Popen(("sh", "-c", SLEEPING.format(group=group)), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        cgroups.remove(whole)
        assert process.wait() == -9
    assert not whole.exists()
