"""What a job asks a batch scheduler for, from [queue] and [train]. Pure."""

from train.job.config import QueueConfig
from train.job.protocol import AllocationRequest


def make_request(
    queue: QueueConfig, *, job: str, name: str, nodes: int, max_duration_s: int | None
) -> AllocationRequest:
    """The request for a job's nodes. job: its id. max_duration_s: [train] max_duration, if there is one."""
    return AllocationRequest(
        job=job,
        name=name,
        nodes=nodes,
        queue=queue.name,
        walltime_s=queue.find_walltime_s(max_duration_s),
        account=queue.account,
        slots_per_node=0 if queue.slots_per_node == "auto" else queue.slots_per_node,
        options=queue.options,
    )
