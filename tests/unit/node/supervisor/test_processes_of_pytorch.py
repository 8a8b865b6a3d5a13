"""Jobs whose processes the supervisor itself starts: what they know. test_torch_jobs.py has the real torchrun."""

from typing import Any

from job_host import LocalHead, job_host, lines_of

__all__ = ["job_host"]

NAMES = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR CLUSTER_RANK CLUSTER_INIT_METHOD GLOO_SOCKET_IFNAME"
NAMES += " GROUP_RANK"


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
