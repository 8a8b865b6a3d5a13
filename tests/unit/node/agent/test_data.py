"""What the supervisor hears of a node that still copies a job's files."""

import asyncio

import pytest

from node.agent.data import JobData
from node.tasks import Tasks


@pytest.mark.parametrize(("url", "copies"), [("s3://bucket/results/j1/", True), ("/volume/j1/", False)])
def test_a_node_copies_from_the_end_of_its_processes_on(url: str, *, copies: bool) -> None:
    """Its containers end first, which takes seconds: the supervisor must not give it up meanwhile."""

    async def end() -> bool:
        data = JobData("j1", Tasks(asyncio.get_running_loop(), lambda error: pytest.fail(repr(error))))
        env = {"CLUSTER_OUTPUT_URL": url, "CLUSTER_HOST": "node-0", "CLUSTER_OUTPUT_DIR": "/nowhere"}
        data.copy_outputs(env, lambda _: None)
        assert not data.is_finishing
        assert data.begin_to_finish() == data.is_finishing
        return data.is_finishing

    assert asyncio.run(end()) == copies
