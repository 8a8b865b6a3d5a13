"""`cluster verify` on nodes that are processes of this host: the real programs, with a fake MXNet."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import bootstrap.verify.checks
import bootstrap.verify.nodes
from bootstrap.apply import ReadyNode
from bootstrap.verify.nodes import verify
from foundation.progress import silent
from local_nodes import FakeMXNet, LostConnection, channels, fake_mxnet, local_node, nodes, of_kind
from node.setup.process_tree import start_time
from waits import until

__all__ = ["fake_mxnet", "nodes"]


@pytest.mark.parametrize(
    ("more", "subject", "message"),
    [
        ("def ones(shape, ctx): return Array(1.5)", "cpu(0)", "came out as [[4.0"),
        ("def ones(shape, ctx): os.abort()", "cpu(0)", "MXNet was killed by signal 6 at cpu(0)"),
        ("raise RuntimeError('half unpacked')", "import mxnet", "RuntimeError: half unpacked"),
    ],
)
def test_a_failing_mxnet_is_reported(
    nodes: list[ReadyNode], fake_mxnet: FakeMXNet, more: str, subject: str, message: str
) -> None:
    fake_mxnet(more)
    (failed,) = of_kind(verify(nodes[:1], report=silent), "compute")
    assert (failed.status, failed.subject) == ("failed", subject)
    assert message in failed.result


def test_a_hanging_mxnet_is_killed_and_reported(
    nodes: list[ReadyNode], fake_mxnet: FakeMXNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_mxnet("def ones(shape, ctx): time.sleep(600)")
    monkeypatch.setattr(bootstrap.verify.checks, "COMPUTE_TIMEOUT_S", 5.0)  # enough for Python to start
    (failed,) = of_kind(verify(nodes[:1], report=silent), "compute")
    assert (failed.status, failed.subject) == ("failed", "cpu(0)")
    assert "did not end in time and was killed at cpu(0)" in failed.result


def test_every_gpu_has_its_own_check(nodes: list[ReadyNode], fake_mxnet: FakeMXNet) -> None:
    fake_mxnet(
        "gpus = 3\n"
        "def ones(shape, ctx):\n"
        "    if ctx == 'gpu(1)': raise MXNetError('CUDA: uncorrectable ECC error')\n"
        "    return Array(1.0)"
    )
    found = of_kind(verify(nodes[:1], report=silent), "compute")
    assert [(check.subject, check.status) for check in found] == [
        ("gpu(0)", "ok"),
        ("gpu(1)", "failed"),
        ("gpu(2)", "ok"),
    ]


@pytest.mark.usefixtures("fake_mxnet")
def test_a_frozen_or_lost_node_does_not_delay_the_others(
    nodes: list[ReadyNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """node-1 freezes after its start; node-2 cannot be reached."""
    begin = bootstrap.verify.nodes._Talk.begin

    def freeze_after_begin(talk: Any) -> None:
        begin(talk)
        if talk.connection.host.name == "node-1":
            os.killpg(talk._channel.process.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, talk._channel.process.pid, os.WSTOPPED)
            talk._channel.settimeout(0.5)  # no further message will arrive

    monkeypatch.setattr(bootstrap.verify.nodes._Talk, "begin", freeze_after_begin)
    nodes[2] = local_node(2, LostConnection())
    checks = verify(nodes, report=silent)
    assert [(check.node, check.status) for check in of_kind(checks, "connection")] == [
        ("node-1", "failed"),
        ("node-2", "failed"),
    ]
    assert "no message for" in (of_kind(checks, "connection")[0].cause or "")
    assert ("node-0", "ok") in {(check.node, check.status) for check in of_kind(checks, "compute")}


def test_probes_end_when_the_connection_closes(nodes: list[ReadyNode], fake_mxnet: FakeMXNet, tmp_path: Path) -> None:
    """And the processes that they have started, such as MXNet's servers."""
    place = tmp_path / "pid"
    fake_mxnet(
        "import subprocess\n"
        f"open({str(place)!r}, 'w').write(f\"{{subprocess.Popen(['sleep', '600']).pid}}.\"); time.sleep(600)"
    )
    running = threading.Thread(target=verify, args=(nodes[:1],), kwargs={"report": silent})
    running.start()
    until(lambda: place.exists() and place.read_text().endswith("."), "it does not start")
    (channel,) = channels(nodes)
    channel.close()
    running.join()
    assert channel.process.wait(10) == 0
    until(lambda: start_time(int(place.read_text()[:-1])) is None, "it still runs")
