"""`cluster notebook` with a real JupyterLab, over a tunnel that is killed."""

import asyncio
import json
import logging
import os
import signal
import time
import urllib.parse
import uuid
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from project import Project, shipped

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

LOG = logging.getLogger(__name__)
KILLS = 20
LINES = 600
CELL = f"""
import time, mxnet
print(mxnet.nd.ones(2).sum().asscalar(), flush=True)
for number in range({LINES}):
    print("line", number, flush=True)
    time.sleep(0.1)
"""


async def run_cell(url: str, pid: int) -> str:
    """Runs CELL, and stops or kills the tunnel's ssh KILLS times. Returns the cell's output as an open page gets it."""
    parts = urllib.parse.urlsplit(url)
    base, token = f"http://{parts.netloc}/api", urllib.parse.parse_qs(parts.query)["token"][0]
    async with aiohttp.ClientSession() as stranger, stranger.get(f"{base}/kernels") as refused:
        assert refused.status == 403
    async with aiohttp.ClientSession(headers={"Authorization": f"token {token}"}) as page:
        async with page.post(f"{base}/kernels", json={"name": "python3"}) as made:
            kernel = (await made.json())["id"]
        session = uuid.uuid4().hex
        header = {"msg_id": uuid.uuid4().hex, "username": "", "session": session, "msg_type": "execute_request"}
        request = {"header": {**header, "version": "5.3", "date": ""}, "parent_header": {}, "metadata": {}}
        address = f"{base}/kernels/{kernel}/channels?session_id={session}"
        channel = await connect_again(page, address)
        await channel.send_json({**request, "content": {"code": CELL, "silent": False}, "channel": "shell"})
        shown, killed, killed_at, took_s = "", 0, 0.0, list[float]()
        while True:
            message = await channel.receive()
            if message.type is not aiohttp.WSMsgType.TEXT:
                channel = await connect_again(page, address)
                took_s.append(time.monotonic() - killed_at)
                continue
            told: dict[str, Any] = json.loads(message.data)
            shown += told["content"].get("text", "") if told["msg_type"] == "stream" else ""
            assert told["msg_type"] != "error", told
            if f"line {25 * (killed + 1)}\n" in shown and killed <= len(took_s) < KILLS:
                killed, killed_at = killed + 1, time.monotonic()
                [ssh] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()  # noqa: ASYNC240 - a moment
                if killed % 2:  # as of a laptop that sleeps: neither end knows that messages do not arrive
                    os.kill(int(ssh), signal.SIGSTOP)
                    await asyncio.sleep(1)
                    killed_at = time.monotonic()
                os.kill(int(ssh), signal.SIGKILL)
            of_cell = told["parent_header"].get("msg_id") == header["msg_id"]
            if of_cell and told["content"].get("execution_state") == "idle":
                assert len(took_s) == KILLS
                LOG.info("connected again after %s s", sorted(round(one, 2) for one in took_s))
                return shown


async def connect_again(page: aiohttp.ClientSession, address: str) -> "aiohttp.ClientWebSocketResponse[bool]":
    """Connects as soon as the tunnel is there."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await page.ws_connect(address)
            except aiohttp.ClientError:
                await asyncio.sleep(0.05)


def test_a_cell_loses_no_output_and_a_job_runs_beside_it(two_nodes: Project) -> None:
    with two_nodes.running("notebook", "node-1") as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:"), two_nodes.messages.read_text()
        shown = asyncio.run(run_cell(url, process.pid))
        lines = shown.splitlines()
        assert list(dict.fromkeys(lines)) == ["2.0", *(f"line {number}" for number in range(LINES))]
        # What the page has received in the last moment of a connection, the server cannot know.
        assert len(lines) - LINES - 1 <= KILLS
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
    assert "hi" in two_nodes.run("train", "-n", "1", "--launcher", "env", "--", "echo", "hi").stdout
    with two_nodes.running("notebook", "node-1") as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip().rpartition("?")[2] == url.rpartition("?")[2]  # the same one
        two_nodes.run("notebook", "--stop", "node-1")
        assert process.wait(timeout=60) == 0
        assert "the notebook on node-1 has ended" in two_nodes.messages.read_text()
    [job] = [job for job in json.loads(two_nodes.run("jobs", "--json").stdout) if job["name"] == "notebook"]
    assert job["state"] == "stopped"
    token = urllib.parse.urlsplit(url).query.removeprefix("token=")
    assert token not in json.dumps(job) + two_nodes.run("logs", "notebook").stdout


def test_down_keeps_the_last_changes_of_a_notebook(project: Project) -> None:
    project.write(shipped(results="s3://results/"))
    project.run("up")
    project.run("data", "put", "--create-bucket", "cluster.toml", "s3://results/")
    with project.running("notebook") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://127.0.0.1:"), project.messages.read_text()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
    write = "cd ~/.cluster/jobs/*/output && touch changed.ipynb"
    project.run("exec", "--node", "node-0", "--", "sh", "-c", write)
    assert "(notebook)" in project.run("down", "--yes").stderr
    assert "changed.ipynb" in project.run("data", "ls", "--recursive", "s3://results/").stdout
