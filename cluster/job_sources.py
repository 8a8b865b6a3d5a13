"""Where commands about jobs find them: on the head, and in S3 what has been copied there."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from cluster.app import App
from provision.errors import ClusterError, NotFoundError
from train.records import DamagedRecordError, JobRecord, choose_job, merge_records, read_jobs

if TYPE_CHECKING:
    from train.head import Head


class JobSources:
    """The jobs of a cluster. Make it with `open_jobs`.

    head: None where there is none to be asked; `why_not` says why.
    """

    def __init__(self, app: App, *, head: "Head | None", why_not: ClusterError | None, has_cloud: bool) -> None:
        self._app = app
        self.head = head
        self.why_not = why_not
        self._has_cloud = has_cloud

    def find_job(self, words: str | None) -> JobRecord:
        """The job that `words` names, the newest without them; see choose_job. Raises ClusterError's kinds."""
        of_head = self._ask_head()
        if of_head:
            try:
                return choose_job(of_head, words)
            except (NotFoundError, DamagedRecordError):
                if self._app.config.data.results is None:
                    raise
        return choose_job(self._add_s3(of_head), words)

    def find_records(self) -> tuple[JobRecord, ...]:
        """All jobs that are known, newest first.

        Without [data] results what goes wrong with the head is raised; else it is said, and S3 is asked.
        Raises ClusterError's kinds.
        """
        return self._add_s3(self._ask_head())

    def _ask_head(self) -> tuple[JobRecord, ...]:
        if self.head is not None:
            try:
                return ask_head(self.head)
            except ClusterError as error:
                self.head, self.why_not = None, error
        return ()

    def _add_s3(self, of_head: tuple[JobRecord, ...]) -> tuple[JobRecord, ...]:
        results = self._app.config.data.results
        if results is None or not self._has_cloud:
            if self.why_not is not None:
                raise self.why_not
            return of_head
        if self.why_not is not None:
            self._app.say(f"{self.why_not.message}; what is shown is from {results}", style="yellow")
        return merge_records(of_head, self._read_s3(results))

    def _read_s3(self, results: str) -> tuple[JobRecord, ...]:
        from train.s3_jobs import read_s3_records  # noqa: PLC0415 - s3fs is slow to import

        try:
            return read_s3_records(results, region=self._app.config.provision.region)
        except ClusterError as error:
            if self.head is None:
                raise
            self._app.say(f"jobs in {results} are not shown: {error.message}", style="yellow")
            return ()


def ask_head(head: "Head") -> tuple[JobRecord, ...]:
    """The jobs that the head knows, newest first. Raises ClusterError's kinds."""
    line = head.ask("list")
    if not line:  # no job has ever run there
        return ()
    try:
        return merge_records(read_jobs(line))
    except ValueError as error:
        raise head.not_understood(error) from None


@contextmanager
def open_jobs(app: App) -> Iterator[JobSources]:
    """Find out where the jobs of a cluster can be asked for. Connections end with the block. Raises AwsError."""
    try:
        app.enter_cloud()
    except ClusterError as error:
        yield JobSources(app, head=None, why_not=error, has_cloud=False)
        return
    from cluster.job_head import open_head  # noqa: PLC0415 - boto3 and Fabric are slow to import
    from cluster.session import describe  # noqa: PLC0415 - as above

    state = describe(app)
    with ExitStack() as stack:
        head, why_not = None, None
        try:
            head = stack.enter_context(open_head(app, state))
        except ClusterError as error:
            why_not = error
        yield JobSources(app, head=head, why_not=why_not, has_cloud=True)
