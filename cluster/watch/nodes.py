"""The table of a job's nodes, from their newest samples. Pure."""

from collections.abc import Iterable

from cluster.views.job_rows import Row, render_columns
from node.samples import GpuSample, Sample

GIB = 1 << 30


def render_nodes(samples: Iterable[Sample], *, most: int) -> tuple[Row, ...]:
    """Renders a header and a row per node; leaves out the columns that do not fit into `most` characters."""
    nodes = sorted(samples, key=lambda sample: (len(sample.host), sample.host))
    if not nodes:
        return ()
    columns = {
        "node": [node.host[:20] for node in nodes],
        "cpu": [f"{node.cpu:.0f} %" for node in nodes],
        "memory": [_share(node.memory, node.memory_total) for node in nodes],
        "gpu": [_gpu_use(node.gpus) for node in nodes],
        "gpu memory": [_gpu_memory(node.gpus) for node in nodes],
        "received": [_rate(node.received) for node in nodes],
        "sent": [_rate(node.sent) for node in nodes],
        "": [_note(node.gpus) for node in nodes],
    }
    return render_columns(columns, most, drop=[*columns][:0:-1], left=("node", ""))


def _share(used: float, total: float) -> str:
    return f"{used / GIB:.1f} of {total / GIB:.0f} GiB" if total else ""


def _rate(rate: float) -> str:
    return f"{rate / 1e6:.1f} MB/s"


def _gpu_use(gpus: tuple[GpuSample, ...]) -> str:
    return " ".join("?" if gpu.use is None else f"{gpu.use:.0f} %" for gpu in gpus)


def _gpu_memory(gpus: tuple[GpuSample, ...]) -> str:
    return _share(sum(gpu.memory or 0.0 for gpu in gpus), sum(gpu.memory_total or 0.0 for gpu in gpus))


def _note(gpus: tuple[GpuSample, ...]) -> str:
    return ", ".join(f"gpu {gpu.index} throttled: {gpu.throttled}" for gpu in gpus if gpu.throttled)
