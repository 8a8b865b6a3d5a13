"""The running job as `cluster status` asks for it: beside everything else, and never for long."""

import threading
from collections.abc import Callable

from cluster.app import App
from cluster.status import HeadJob
from provision.errors import ClusterError
from provision.model import ClusterState

PATIENCE_S = 4.0
CONNECT_S = 2.0


def ask_for_job(app: App, state: ClusterState) -> Callable[[], HeadJob | None]:
    """Begin to ask the head for its job; the function returned waits for the answer, for PATIENCE_S at most.

    It returns None where there is no running head. What goes wrong with it is no error, and stands in the answer.
    """
    head = next((node for node in state.nodes if node.role == "head"), None)
    if head is None or head.state != "running":
        return lambda: None
    answers: list[HeadJob] = []

    def ask() -> None:
        try:
            answers.append(_ask(app, state))
        except (ClusterError, OSError) as error:
            answers.append(HeadJob(why=str(error).partition("\n")[0]))

    # A daemon: a head that does not answer keeps nobody waiting at the end.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()

    def wait() -> HeadJob:
        thread.join(PATIENCE_S)
        return answers[0] if answers else HeadJob(why=f"{head.name} did not answer within {PATIENCE_S:.0f} s")

    return wait


def _ask(app: App, state: ClusterState) -> HeadJob:
    from cluster.job_head import open_head  # noqa: PLC0415 - Fabric is slow to import: beside the rest
    from cluster.job_sources import ask_head  # noqa: PLC0415
    from train.records import find_running  # noqa: PLC0415

    with open_head(app, state, wait_s=CONNECT_S) as head:
        records = ask_head(head)
    return HeadJob(record=find_running(records), queued=sum(record.state == "queued" for record in records))
