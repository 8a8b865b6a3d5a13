"""Clusters of existing hosts, as text and as JSON. Pure."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from bootstrap.ssh.host import Host
from cluster.views.document import pick
from cluster.views.layout import render_table
from cluster.views.status import HeadJob, job_document, render_job_lines, render_unhealthy


class HostState(Struct, frozen=True, kw_only=True):
    """The state of a host. slots: how many times it is listed. why: the reason why it cannot be reached."""

    host: Host
    state: Literal["ready", "not-set-up", "unreachable"]
    slots: int = 1
    why: str | None = None


class HostsStatus(Struct, frozen=True, kw_only=True):
    """The content of `cluster status`. job: None if there is no head to ask."""

    cluster: str
    hosts: Sequence[HostState]
    job: HeadJob | None
    now: datetime

    @property
    def state(self) -> str:
        """The state of the cluster.

        "ready": all hosts are ready. "degraded": some cannot be reached. "not-set-up": all other cases.
        """
        states = {host.state for host in self.hosts}
        if "unreachable" in states:
            return "degraded"
        return "ready" if states == {"ready"} else "not-set-up"

    @property
    def unhealthy(self) -> dict[str, tuple[str, ...]]:
        """The reasons why hosts are unhealthy, by name."""
        return (self.job or HeadJob()).find_unhealthy({each.host.name: each.host.instance_id for each in self.hosts})


def render_hosts(hosts: Sequence[HostState], *, columns: int | None = None) -> str:
    """Renders a table of the hosts. columns: the width that it fits into."""
    rows = [("NODE", "ROLE", "STATE", "SLOTS", "USER", "PORT", "ADDRESS")]
    rows += [
        (
            each.host.name,
            "head" if each.host.is_head else "worker",
            each.state.replace("-", " "),
            str(each.slots),
            each.host.user,
            str(each.host.port),
            each.host.private_ip or each.host.address,
        )
        for each in hosts
    ]
    return render_table(rows, columns=columns, drop=("PORT", "USER", "ADDRESS", "ROLE"))


def render_hosts_status(status: HostsStatus, *, columns: int | None = None) -> str:
    """Renders the hosts in a table, then the errors, the state and the job. columns: see render_hosts."""
    hints = {"ready": "", "degraded": "", "not-set-up": ": cluster up sets up the hosts"}
    lines = [render_hosts(status.hosts, columns=columns)]
    lines += [f"error  {each.why}" for each in status.hosts if each.why is not None]
    lines += render_unhealthy(status.unhealthy)
    lines.append(f"state  {status.state.replace('-', ' ')}{hints[status.state]}")
    return "\n".join([*lines, *render_job_lines(status.job, now=status.now)])


def status_document(status: HostsStatus) -> dict[str, Any]:
    """Returns the output of `cluster status --json`."""
    return {
        "name": status.cluster,
        "cloud": "hosts",
        "state": status.state,
        "nodes": [
            {
                **pick(each.host, "name user port"),
                **pick(each, "state why slots"),
                "role": "head" if each.host.is_head else "worker",
                "unhealthy": list(status.unhealthy.get(each.host.name, ())),
                "address": each.host.private_ip or each.host.address,
            }
            for each in status.hosts
        ],
        "job": None if status.job is None else job_document(status.job),
    }
