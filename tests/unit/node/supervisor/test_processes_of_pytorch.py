"""Jobs whose processes torchrun or the supervisor itself starts: how they start, fail and end."""

from typing import Any

import pytest

from job_host import LocalHead, job_host, lines_of

__all__ = ["job_host"]

NAMES = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR CLUSTER_RANK CLUSTER_INIT_METHOD GLOO_SOCKET_IFNAME"
NAMES += " GROUP_RANK"


def order(host: LocalHead, engine: str, program: str, *, lines: int = 2, **more: Any) -> dict[str, Any]:
    """An order for processes on node-0 and node-1, one for each line of the hostfile."""
    listed = sorted(f"127.0.0.{1 + index % 2}" for index in range(lines))
    fields: dict[str, Any] = {"launcher": engine, "kv_store": "none", "workers": lines, "servers": 0}
    fields["hostfile"] = listed
    return host.order("/bin/bash", "-c", program, **{**fields, **more})


def exits_of(log: list[dict[str, Any]]) -> dict[str, int]:
    ranks = {event["p"]: event["rank"] for event in log if "rank" in event}
    roles = {event["p"]: event["role"] for event in log if "role" in event}
    return {f"{roles[event['p']]} {ranks.get(event['p'])}": event["exit"] for event in log if "exit" in event}


@pytest.mark.parametrize("engine", ["torchrun", "env"])
def test_each_process_knows_its_place(job_host: LocalHead, engine: str) -> None:
    program = "".join(f"echo {name}=${name}; " for name in NAMES.split())
    result, log = job_host.run(order(job_host, engine, program, lines=4))
    assert (result["state"], result["error"], result["left"]) == ("done", None, {})
    assert set(exits_of(log)) >= {"worker 0", "worker 1", "worker 2", "worker 3"}
    numbers = {event["rank"]: event["p"] for event in log if "rank" in event}
    for rank in range(4):
        output = dict(event["line"].split("=", 1) for event in log if "line" in event and event["p"] == numbers[rank])
        port = output["CLUSTER_INIT_METHOD"].rpartition(":")[2]
        assert 29500 <= int(port) < 30000
        assert output == {
            "RANK": str(rank),
            "CLUSTER_RANK": str(rank),
            "LOCAL_RANK": str(rank % 2),
            "WORLD_SIZE": "4",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "GLOO_SOCKET_IFNAME": "lo" if rank < 2 else "",  # no interface of this machine has the other host's address
            "CLUSTER_INIT_METHOD": f"tcp://127.0.0.1:{port}",
            "GROUP_RANK": str(rank // 2),
        }


def test_arguments_may_name_the_rank(job_host: LocalHead) -> None:
    """A script with --dist-url, --rank and --world-size expects such arguments. Other variables stay unchanged."""
    words = ["--dist-url", "$CLUSTER_INIT_METHOD", "--rank=${CLUSTER_RANK}", "$CLUSTER_WORLD_SIZE", "$HOME"]
    fields: dict[str, Any] = {"launcher": "env", "kv_store": "none", "workers": 2, "servers": 0}
    result, log = job_host.run(job_host.order("/bin/echo", *words, **fields))
    assert result["state"] == "done"
    messages = sorted(line.split() for line in lines_of(log, "worker"))
    assert [words[0] for words in messages] == ["--dist-url"] * 2
    assert [words[2:] for words in messages] == [["--rank=0", "2", "$HOME"], ["--rank=1", "2", "$HOME"]]
    assert {words[1].rpartition(":")[0] for words in messages} == {"tcp://127.0.0.1"}
