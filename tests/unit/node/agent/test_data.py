"""What the supervisor hears of a node that still copies a job's files."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from node.agent.data import JobData
from node.tasks import Tasks


@pytest.mark.parametrize(("limits", "is_copied"), [((0.3,), True), ((None, 0.3), True), ((0.05,), False)])
def test_the_end_of_processes_takes_no_time_from_the_copy(
    limits: Sequence[float | None], *, is_copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is that of the copy: of a stopped job's last checkpoint, nothing would be left of it."""
    copied: list[str] = []

    class SlowOutputs:
        def __init__(self, *_: object) -> None:
            self.begin = self.report_left = lambda: None

        def finish(self) -> None:
            time.sleep(0.15)
            copied.append("checkpoint")

    async def end() -> bool:
        data = JobData("j1", Tasks(asyncio.get_running_loop(), lambda error: pytest.fail(repr(error))))
        data.copy_outputs({"CLUSTER_OUTPUT_URL": "s3://bucket/results/j1/"}, lambda _: None)
        for copy_s in limits:
            data.limit_copy(copy_s)
        await asyncio.sleep(0.4)  # the processes end
        await data.finish()
        return copied == ["checkpoint"]

    monkeypatch.setattr("node.staging.outputs.Outputs", SlowOutputs)
    assert asyncio.run(end()) == is_copied
