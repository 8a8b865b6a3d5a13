"""What the supervisor hears of a node that still copies a job's files."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from node.agent.data import JobData
from node.agent.work_folder import Entry
from node.tasks import Tasks


@pytest.mark.parametrize(("limits", "is_copied"), [((1.0,), True), ((None, 1.0), True), ((0.05,), False)])
def test_the_end_of_processes_takes_no_time_from_the_copy(
    limits: Sequence[float | None], *, is_copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is that of the copy: of a stopped job's last checkpoint, nothing would be left of it."""
    copied: list[str] = []
    may_copy = threading.Event()

    class Outputs:
        def __init__(self, *_: object) -> None:
            self.begin = self.report_left = lambda: None

        def is_copied(self, _: Entry) -> bool:
            return True

        def finish(self) -> None:
            may_copy.wait(60)
            copied.append("checkpoint")

    async def end() -> bool:
        data = JobData("j1", Tasks(asyncio.get_running_loop(), lambda error: pytest.fail(repr(error))))
        data.copy_outputs({"CLUSTER_OUTPUT_URL": "s3://bucket/results/j1/"}, lambda _: None)
        for copy_s in limits:
            data.limit_copy(copy_s)
        await asyncio.sleep(1.1)  # the processes end
        if is_copied:
            may_copy.set()
        file = Entry("/output/checkpoint", "output/checkpoint", 1, 1)
        assert not data.is_copied(file)  # a process that does not end may still write it
        await data.finish()
        assert data.is_copied(file)
        found = copied == ["checkpoint"]
        may_copy.set()
        return found

    monkeypatch.setattr("node.staging.outputs.Outputs", Outputs)
    assert asyncio.run(end()) == is_copied
