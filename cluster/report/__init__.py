"""`cluster report`: one HTML page about a job, or about several that are compared."""

import sys
from collections.abc import Sequence
from pathlib import Path

from cluster.app import App
from cluster.jobs import open_jobs
from cluster.report.document import report_document
from cluster.report.job import JobData, read_job
from cluster.report.page import render_report
from foundation.errors import ClusterError, NotFoundError
from foundation.files import refuse_special, write_whole
from train.s3.partial_file import find_file_mode

__all__ = ["JobData", "load_jobs", "render_report", "report_document", "write_report"]


def load_jobs(app: App, *words: str, newest: int = 1) -> list[JobData]:
    """Reads the jobs that the words name; without words, the newest ones. Raises ClusterError or a subclass."""
    with open_jobs(app) as sources:
        if words or newest == 1:
            return [read_job(app, sources, one) for one in words or (None,)]
        records = [record for record in sources.find_records() if not record.is_damaged][:newest]
        if len(records) < newest:
            raise NotFoundError("there are no two jobs to compare", hint="cluster jobs")
        return [read_job(app, sources, record.id) for record in records]


def write_report(path: Path, jobs: Sequence[JobData]) -> None:
    """Writes the page atomically, and makes its folder; "-": to stdout. Raises ClusterError."""
    if str(path) == "-":
        sys.stdout.buffer.write(render_report(jobs).encode("utf-8", "replace"))
        return
    try:
        refuse_special(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, render_report(jobs).encode("utf-8", "replace"), mode=find_file_mode())
    except OSError as error:
        raise ClusterError(f"cannot write {path}: {error.strerror}", hint="cluster report -o FILE") from error
