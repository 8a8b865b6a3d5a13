"""What `cluster verify` reports about the rates of a volume."""

from bootstrap.verify.volumes import Rates, to_check


def test_one_reader() -> None:
    check = to_check("/shared", Rates(write=50e6, read=100e6, together={}))
    assert (check.status, check.said) == ("ok", "write 50 MB/s, read 100 MB/s")


def test_readers_that_share_a_bandwidth() -> None:
    enough = to_check("/shared", Rates(write=50e6, read=100e6, together={"node-1": 80e6, "node-2": 90e6}))
    assert (enough.status, enough.said) == ("ok", "write 50 MB/s, read 100 MB/s; 2 nodes at once 170 MB/s")
    short = to_check("/shared", Rates(write=50e6, read=100e6, together={"node-1": 50e6, "node-2": 52e6}))
    assert short.status == "warning"
    assert short.cause == (
        "2 readers exceed the bandwidth of the volume's server: each gets 51 MB/s, one alone 100 MB/s"
    )
