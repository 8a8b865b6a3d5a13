"""What processes exchange with hosts outside their job, as `ss` prints it."""

import pytest

from node.agent.traffic import sum_bytes

# Recorded: of iproute2 6.1, shortened.
TEXT = """\
0 0 10.0.0.4:56564 52.216.1.9:443 users:(("python",pid=7,fd=13)) bbr bytes_sent:15 bytes_acked:15 bytes_received:109485
0 99 [::ffff:10.0.0.4]:443 [::ffff:10.0.0.5]:9091 users:(("python",pid=7,fd=14)) bbr bytes_acked:5 bytes_received:7 x
0 0 127.0.0.1:56606 127.0.0.1:35757 users:(("python",pid=7,fd=15),("python",pid=8,fd=15)) bbr bytes_acked:60
0 0 10.0.0.4:22 192.0.2.7:35757 users:(("sshd",pid=9,fd=15)) bbr bytes_acked:60
"""


@pytest.mark.parametrize(
    ("pids", "hosts", "size_bytes"),
    [({7}, ("10.0.0.5",), 109500), ({7}, (), 109512), ({8}, (), 0), ({9, 99}, ("10.0.0.5",), 60), ((), (), 0)],
)
def test_connections_within_the_job_do_not_count(pids: set[int], hosts: tuple[str, ...], size_bytes: int) -> None:
    assert sum_bytes(TEXT, pids, hosts) == size_bytes
