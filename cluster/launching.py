"""The end of `cluster train`'s beginning: from nodes that are ready to a job that runs."""

from contextlib import closing
from typing import TYPE_CHECKING

from bootstrap.apply import ReadyNode
from cluster.app import App
from cluster.commands.train_options import TrainRequest
from cluster.job_head import head_of
from provision.progress import Event
from train.asking import Asking
from train.run import open_submission

if TYPE_CHECKING:
    from provision.iam_policy import S3Scope
    from train.job import Job
    from train.s3.environment import S3Access
    from train.survey import Survey


def launch(
    app: App,
    nodes: tuple[ReadyNode, ...],
    request: TrainRequest,
    *,
    script: str,
    scope: "S3Scope",
    asking: Asking,
    detach: bool,
    plain: bool,
) -> int:
    """Plan the job, show what was decided for the user, and run it; the exit code. Raises ClusterError's kinds."""
    # Python starts on the head while more is imported here, AWS is waited for and the job is planned.
    with closing(head_of(app, nodes)) as head, closing(open_submission(head, follow=not detach)) as talk:
        from cluster.attach import attend, start  # noqa: PLC0415
        from train.payload import find_shadowed  # noqa: PLC0415
        from train.settings import render_settings  # noqa: PLC0415

        access = asking.access()
        job = _plan(app, nodes, request, script=script, scope=scope, access=access, survey=asking.survey())
        shadowed = find_shadowed(app.config.train.script, project_dir=app.project_dir) if job.script_source else None
        for warning in (*([shadowed] if shadowed else []), *job.warnings):
            app.report(Event(kind="warn", what=warning))
        app.say("\n".join(render_settings(job)))
        others = [node.host for node in nodes if node.host.spec]
        if others:
            from cluster.other_hosts import note_job  # noqa: PLC0415 - not for those who have none

            note_job(app, others, job.id)
        order = job.order(secrets=access.secrets)
        if not detach:
            return attend(app, head, order, plain=plain, talk=talk)
        start(app, head, order, talk=talk)
    return 0


def _plan(
    app: App,
    nodes: tuple[ReadyNode, ...],
    request: TrainRequest,
    *,
    script: str,
    scope: "S3Scope",
    access: "S3Access",
    survey: "Survey",
) -> "Job":
    from train.job import new_job_id, plan_job  # noqa: PLC0415 - as in launch
    from train.payload import read_program  # noqa: PLC0415 - as in launch
    from train.scope import render_access  # noqa: PLC0415 - as in launch

    config = app.config
    return plan_job(
        config.train,
        nodes,
        job_id=new_job_id(),
        script=script,
        data=config.data,
        env=access.env,
        command=request.command,
        nodes_credentials=access.of_nodes,
        credentials_left_s=access.left_s,
        credentials=render_access(access, scope),
        credentials_warning=access.warning,
        mxnet=config.bootstrap.mxnet,
        program=read_program(config.train.script, command=request.command, project_dir=app.project_dir),
        survey=survey,
        hidden=request.hidden,
    )
