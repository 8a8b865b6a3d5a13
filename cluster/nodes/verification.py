"""Checks and measures nodes, for `cluster verify` and `cluster bench`, and shows the checks."""

import re
from collections.abc import Sequence
from contextlib import closing

from msgspec.structs import asdict

from bootstrap.apply import ReadyNode
from bootstrap.verify.checks import Check, Probe
from bootstrap.verify.nodes import verify as try_nodes
from cluster.app import App
from cluster.jobs import check_idle, head_of
from cluster.session import source_of
from cluster.views.layout import render_table
from foundation.errors import ClusterError
from train.job.data_check import plan_s3_check

MEASURING = (
    "measuring takes one to four minutes, longer with slow links; each node writes 1 GiB to its disk, reads at most "
    "1 GiB from S3, and sends at most 2 GiB to other nodes"
)
SHOWN = {"ok": "ok", "warning": "WARNING", "failed": "FAILED", "unchecked": "-"}


def check_nodes(app: App, nodes: Sequence[ReadyNode], *, kv_store: str | None = None) -> tuple[Check, ...]:
    """Checks the nodes, the network between them, and S3. kv_store: see nodes.verify."""
    data, is_deep, s3 = app.config.data, kv_store is not None, None
    if data.url is None or data.s3_url is not None:  # else it is on a volume
        s3 = plan_s3_check(
            data.s3_url or (data.s3_results if is_deep else None),
            region=app.config.provision.region,
            instance_profile=source_of(app).instance_profile,
            cluster=app.config.name,
            is_deep=is_deep,
        )
    probes = [s3] if isinstance(s3, Probe) else []
    checks = try_nodes(nodes, probes=probes, kv_store=kv_store, report=app.report)
    return (*checks, s3) if isinstance(s3, Check) else checks


def measure_nodes(app: App, nodes: Sequence[ReadyNode], *, kv_store: str = "dist_sync") -> tuple[Check, ...]:
    """As check_nodes, with measures. Raises ClusterError if a job runs or waits, or did so meanwhile."""
    with closing(head_of(app, nodes)) as head:
        check_idle(head)
        app.message(MEASURING)
        checks = check_nodes(app, nodes, kv_store=kv_store)
        check_idle(head)
    return checks


def show_checks(app: App, checks: Sequence[Check], *, as_json: bool) -> None:
    """Prints the checks, and what to do about those that need it. Raises ClusterError if one has failed."""
    app.show(render_checks(checks, columns=app.find_columns()), [asdict(check) for check in checks], as_json=as_json)
    warnings = render_troubles(checks, "warning")
    if warnings:
        app.message(warnings, style="yellow")
    failed = sum(check.status == "failed" for check in checks)
    if failed:
        raise ClusterError(f"{failed} of {len(checks)} checks failed:\n{render_troubles(checks, 'failed')}")


def render_checks(checks: Sequence[Check], *, columns: int | None = None) -> str:
    """Renders one aligned line for each check, or two if it would be wider than `columns`. Pure."""
    rows = [("NODE", "CHECK", "OF", "RESULT", "")]
    rows += [(check.node, check.check, check.subject, SHOWN[check.status], check.result) for check in checks]
    return render_table(rows, columns=columns, prose=True)


def render_troubles(checks: Sequence[Check], status: str) -> str:
    """Renders the checks with this status, each with its cause and hint. The same check of several nodes appears once.

    Pure.
    """
    same: dict[str, dict[str, str]] = {}
    for check in checks:
        if check.status == status:
            text = f"{check.check}, {check.subject}: {check.result}"
            text += (f"\n    cause: {check.cause}" if check.cause else "") + (
                f"\n    try: {check.hint}" if check.hint else ""
            )
            # The causes and hints of the same failure differ only in the node's own name.
            same.setdefault(re.sub(rf"\b{re.escape(check.node)}\b", "NODE", text), {})[check.node] = text
    shown = ((list(texts), text if len(texts) > 1 else next(iter(texts.values()))) for text, texts in same.items())
    return "\n".join(f"  {', '.join(nodes)}: {text}" for nodes, text in shown)
