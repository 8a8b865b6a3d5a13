"""What a job's nodes and processes use, as its agents sample it: `samples` in the job's folder.

One JSON object per line, a Sample. Pure.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated

from msgspec import Meta, Struct

from foundation.decode import decode
from node.protocol import Moment, Name, ProcessNumber

Amount = Annotated[float, Meta(ge=0, le=1e18)]


class GpuSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU, as NVML reports it. use: percent. memory: bytes. power_w: watts. temperature: degrees Celsius.

    throttled: why its clocks are lower than they could be, such as "thermal"; "": they are not. errors: uncorrected
    memory errors since the node booted. None: the GPU does not report it.
    """

    index: Annotated[int, Meta(ge=0, le=1024)]
    use: Amount | None = None
    memory: Amount | None = None
    memory_total: Amount | None = None
    power_w: Amount | None = None
    temperature: Amount | None = None
    throttled: str = ""
    errors: Amount | None = None


class ProcessSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process of the job, with the processes that it started, since the node's sample before.

    p: its number. cpu: seconds of CPU time per second. delayed: seconds per second for which its threads could have
    run, but had no CPU. memory: resident bytes.
    """

    p: ProcessNumber
    cpu: Amount = 0.0
    delayed: Amount = 0.0
    memory: Amount = 0.0


class Sample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node and its processes of the job. t: seconds since the epoch. over_s: the time since the sample before.

    cpu: percent of all of the node's CPUs. memory, shm, disk: bytes in use, of all memory, of /dev/shm and of the disk
    with the job's files; with _total: how many there are. read, written: bytes/s of all disks. received, sent: bytes/s
    of all network interfaces but the loopback.
    """

    t: Moment
    host: Name
    over_s: Amount
    cpu: Amount = 0.0
    memory: Amount = 0.0
    memory_total: Amount = 0.0
    shm: Amount = 0.0
    shm_total: Amount = 0.0
    disk: Amount = 0.0
    disk_total: Amount = 0.0
    read: Amount = 0.0
    written: Amount = 0.0
    received: Amount = 0.0
    sent: Amount = 0.0
    gpus: tuple[GpuSample, ...] = ()
    processes: tuple[ProcessSample, ...] = ()


def parse_samples(lines: Iterable[bytes]) -> Iterator[Sample]:
    """Yields the samples in the lines of the file, without damaged ones. Pure."""
    for line in lines:
        try:
            yield decode(line, Sample)
        except ValueError:
            continue
