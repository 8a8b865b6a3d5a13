"""`cluster verify`."""

import re
from collections.abc import Sequence
from contextlib import closing

import click
from msgspec.structs import asdict, replace

from bootstrap.apply import ReadyNode
from bootstrap.container.check import check_containers
from bootstrap.verify.checks import Check, Probe, check_clocks
from bootstrap.verify.health import check_health, find_unhealthy, keep_on_head, look
from bootstrap.verify.nodes import sort_checks
from bootstrap.verify.nodes import verify as try_nodes
from bootstrap.verify.volumes import check_volumes
from cluster.app import App, pass_app
from cluster.containers import find_login
from cluster.health import find_hardware, ids_of
from cluster.jobs import check_idle, head_of
from cluster.session import describe_and_warn, ready_nodes, source_of
from cluster.views.layout import render_table
from foundation.errors import ClusterError
from train.measure.verify_s3 import plan_s3_check

MEASURING = (
    "measuring takes one to four minutes, longer with slow links; each node writes 1 GiB to its disk, reads at most "
    "1 GiB from S3, and sends at most 2 GiB to other nodes"
)
SHOWN = {"ok": "ok", "warning": "WARNING", "failed": "FAILED", "unchecked": "-"}


@click.command("verify")
@click.option("--deep", is_flag=True, help="Also measure disks, GPUs, S3 and the network, while no job runs.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@pass_app
def verify(app: App, *, deep: bool, as_json: bool) -> None:
    """Check the nodes' health, the framework, S3 access, ports, clocks, disks and volumes on all nodes.

    MXNet or PyTorch computes ones((2,3))*2+1 on each GPU, or on the CPU of nodes without one. Each node reads [data]
    url, and connects to every other node on the ports of MXNet's scheduler and parameter servers. With PyTorch, all
    nodes take part in an all_reduce. With [container] image, each node's engine runs it with the node's GPUs. On each
    of [[volumes]], one node writes a file, and the others read it.

    --deep measures all nodes at the same time, and names those that are far from the others.
    """
    app.enter_cloud()
    described = describe_and_warn(app)
    with ready_nodes(app, described) as (nodes, _):
        checks = measure_nodes(app, nodes) if deep else check_nodes(app, nodes)
        hardware = find_hardware(app, described)
        findings = look(nodes)
        # A separate check covers the clocks.
        unhealthy = find_unhealthy(replace(findings, offsets={}), hardware)
        keep_on_head(nodes[0].connection, findings, unhealthy, ids=ids_of(nodes), report=app.report)
        mounts = source_of(app).describe_mounts(described)
        more = [
            check_health(name, report, unhealthy.get(name, ()), hardware.get(name))
            for name, report in findings.reports.items()
        ]
        more += check_clocks(findings.offsets)
        more += check_volumes(nodes, mounts)
        if app.config.container.image:
            more += check_containers(
                nodes,
                app.config.container,
                find_login=find_login(app),
                uses_environment=app.config.bootstrap.framework != "none",
                report=app.report,
            )
        checks = sort_checks((*checks, *more), names=[node.host.name for node in nodes])
    show_checks(app, checks, as_json=as_json)


def check_nodes(app: App, nodes: Sequence[ReadyNode], *, is_deep: bool = False) -> tuple[Check, ...]:
    """Checks the nodes, the network between them, and S3. is_deep: also measures them."""
    data, s3 = app.config.data, None
    if data.url is None or data.s3_url is not None:  # else it is on a volume
        s3 = plan_s3_check(
            data.s3_url or (data.s3_results if is_deep else None),
            region=app.config.provision.region,
            instance_profile=source_of(app).instance_profile,
            cluster=app.config.name,
            is_deep=is_deep,
        )
    checks = try_nodes(nodes, probes=[s3] if isinstance(s3, Probe) else [], is_deep=is_deep, report=app.report)
    return (*checks, s3) if isinstance(s3, Check) else checks


def measure_nodes(app: App, nodes: Sequence[ReadyNode]) -> tuple[Check, ...]:
    """As check_nodes, with measures. Raises ClusterError if a job runs or waits, or did so meanwhile."""
    with closing(head_of(app, nodes)) as head:
        check_idle(head)
        app.say(MEASURING)
        checks = check_nodes(app, nodes, is_deep=True)
        check_idle(head)
    return checks


def show_checks(app: App, checks: Sequence[Check], *, as_json: bool) -> None:
    """Prints the checks, and what to do about those that need it. Raises ClusterError if one has failed."""
    app.show(render_checks(checks, columns=app.find_columns()), [asdict(check) for check in checks], as_json=as_json)
    warnings = render_troubles(checks, "warning")
    if warnings:
        app.say(warnings, style="yellow")
    failed = sum(check.status == "failed" for check in checks)
    if failed:
        raise ClusterError(f"{failed} of {len(checks)} checks failed:\n{render_troubles(checks, 'failed')}")


def render_checks(checks: Sequence[Check], *, columns: int | None = None) -> str:
    """Renders one aligned line for each check, or two if it would be wider than `columns`. Pure."""
    rows = [("NODE", "CHECK", "OF", "RESULT", "")]
    rows += [(check.node, check.check, check.subject, SHOWN[check.status], check.said) for check in checks]
    return render_table(rows, columns=columns, prose=True)


def render_troubles(checks: Sequence[Check], status: str) -> str:
    """Renders the checks with this status, each with its cause and hint. The same check of several nodes appears once.

    Pure.
    """
    same: dict[tuple[str, ...], list[str]] = {}
    for check in checks:
        if check.status == status:
            key = (check.check, check.subject, check.said, check.cause or "", check.hint or "")
            # The causes and hints of the same failure differ only in the node's own name.
            own = rf"\b{re.escape(check.node)}\b"
            same.setdefault(tuple(re.sub(own, "NODE", word) for word in key), []).append(check.node)
    lines = []
    for (what, subject, said, cause, hint), nodes in same.items():
        name = nodes[0] if len(nodes) == 1 else "NODE"
        shown = [word.replace("NODE", name) for word in (subject, said, cause, hint)]
        lines.append(f"  {', '.join(nodes)}: {what}, {shown[0]}: {shown[1]}")
        lines += [f"    cause: {shown[2]}"] * bool(cause) + [f"    try: {shown[3]}"] * bool(hint)
    return "\n".join(lines)
