"""Jobs whose processes the supervisor itself starts: what they know. test_torch_jobs.py has the real torchrun."""

from typing import Any

from job_host import LocalHead, job_host, lines_of

__all__ = ["job_host"]

NAMES = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR CLUSTER_RANK CLUSTER_INIT_METHOD GLOO_SOCKET_IFNAME"
NAMES += " GROUP_RANK"


def test_each_process_knows_its_place(job_host: LocalHead) -> None:
    program = "".join(f"echo {name}=${name}; " for name in NAMES.split())
    hosts = ["127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.2"]
    fields: dict[str, Any] = {"launcher": "env", "kv_store": "none", "workers": 4, "servers": 0, "hostfile": hosts}
    result, log = job_host.run(job_host.order("/bin/bash", "-c", program, **fields))
    assert (result["state"], result["error"], result["left"]) == ("done", None, {})
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
