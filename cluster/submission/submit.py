"""`cluster train`: applies its options to cluster.toml, prepares the nodes, then submits the job."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from bootstrap.apply import ReadyNode
from bootstrap.container.reference import parse_reference
from bootstrap.ssh.connections import Connections
from bootstrap.ssh.host import Host
from bootstrap.ssh.host_list import find_batch_job
from cluster.app import App, if_interrupted
from cluster.config import load_config
from cluster.jobs import head_of
from cluster.nodes.health_check import leave_out_unhealthy
from cluster.nodes.hosts import leave_out_silent
from cluster.nodes.other_hosts import note_job
from cluster.nodes.source import Nodes
from cluster.recovery.lost_head import check_head
from cluster.session import describe, ready_nodes
from cluster.submission.attach import attend, show_check, start
from cluster.submission.launchers import replace_launcher
from cluster.submission.preparation import Preparation, Submission
from cluster.submission.request import (
    TrainRequest,
    check_script,
    find_cwd,
    read,
    read_store,
    read_words,
)
from foundation.errors import UsageError
from node.engines import find_engine
from node.engines.schedulers import SCHEDULERS
from node.protocol import Order
from train.job.checks import check_framework
from train.job.defaults import render_settings
from train.job.job_plan import Job, new_job_id
from train.job.payload import find_script
from train.job.placement import choose_hosts
from train.job.program import find_command


def submit(
    app: App,
    request: TrainRequest,
    *,
    detach: bool,
    dry_run: bool = False,
    plain: bool = False,
    job_id: str | None = None,
    complete: Callable[[Order, Sequence[ReadyNode]], None] = lambda _order, _nodes: None,
) -> int:
    """Submits a job, and follows it unless `detach`. Returns 0, or 130 when it was left running or withdrawn.

    job_id: of new_job_id; None: a new one. complete: changes the order once the nodes are set up. Raises JobError with
    the exit code of the first process that failed, UsageError, ClusterError or a subclass.
    """
    command = request.command
    app.enter_cloud()
    config = app.config
    framework = config.bootstrap.framework
    engine = find_engine(config.train.launcher, framework)
    check_framework(engine.name, framework, has_image=bool(config.container.image))
    submission = Submission(follow=not detach)
    choice = _NodeChoice(app, command, is_scheduled=engine.name in SCHEDULERS)
    with (
        if_interrupted("run cluster train again; no job was started"),
        ready_nodes(
            app,
            choice.find_nodes,
            command=command,
            is_job=True,
            choose=choice.choose_healthy,
            ask_head=submission.begin,  # Python starts on the head while this command waits for AWS and plans the job
        ) as (ready, script),
        closing(head_of(app, ready)) as head,
        closing(submission.take(head, ready[0])) as program,
    ):
        train = replace(config.train, hosts=choice.hosts)
        job = choice.prepared.plan(train, ready, job_id=job_id or new_job_id(), script=script, hidden=request.hidden)
        order = job.order
        job_id = order.spec.id
        if not app.has_instances and order.request is None:  # else it gets an allocation of its own
            found = find_batch_job(os.environ)
            order.within = found if found and {node.host.spec for node in ready}.issubset(found.hosts) else None
        complete(order, ready)
        _report_job(app, job, replaced=request.replaced)
        if dry_run:
            show_check(app, head, order)
            return 0
        note_job(app, [node.host for node in ready], job_id)
        with if_interrupted(f"cluster jobs shows whether job {job_id} runs; cluster stop {job_id} stops it"):
            if not detach:
                return attend(app, head, order, plain=plain, submission=program)
            start(app, head, order, submission=program)
    return 0


def read_request(app: App, words: Sequence[str], options: Mapping[str, Any], *, is_command: bool) -> TrainRequest:
    """Returns the request, with the command that runs in place of a script, and applies its values to `app`.

    words, options: those of the command line. Raises UsageError, also for a script that cannot run: before anything is
    sent.
    """
    config = load_config(app.config_path, app.overrides)
    if options["nodes"] is not None and config.cloud == "hosts":  # replaces [train] hosts, which may be all hosts
        app.override("hosts.names", config.hosts.names or config.train.hosts)
    here, configured = Path.cwd(), config.train.cwd
    is_configured = options["cwd"] is None and configured != "auto"
    folder = app.project_dir / configured if is_configured else here / (options["cwd"] or ".")
    chosen = read_words(words, is_command=is_command, here=here, project_dir=app.project_dir, folder=folder)
    request = read(options, chosen.command)
    app.job_file = options["job"]
    if request.command and (chosen.script or chosen.args):
        raise UsageError(f"{options['job']} has a command; remove the script and arguments from the command line")
    app.overrides |= {**find_registry(app, options["image"] or ""), **request.overrides}
    if chosen.script is not None:
        app.overrides |= {"train.script": chosen.script, "train.args": list(chosen.args)}
        if find_script(chosen.script, project_dir=app.project_dir) is None:
            app.overrides |= {key: value for key, value in read_store(chosen.args).items() if key not in app.overrides}
    elif chosen.args:
        app.overrides["train.args"] = [*load_config(app.config_path, app.overrides).train.args, *chosen.args]
    request = _replace_launcher(app, request)
    configured = app.config.train.cwd
    app.override("train.cwd", find_cwd(options["cwd"], configured, here=here, project_dir=app.project_dir))
    train = app.config.train
    if request.command:
        folder = app.project_dir / train.subfolder
        if chosen.command and not is_command and not train.sync_dst_dir:  # where the nodes keep other files
            check_script(request.command, folder=folder)
        return request
    command = find_command(train.script, train.args, project_dir=app.project_dir, subfolder=train.subfolder)
    return replace(request, command=command)


def find_registry(app: App, image: str) -> dict[str, Any]:
    """Returns the overrides that leave out [container] registry if the job's image is elsewhere."""
    registry = load_config(app.config_path, app.overrides).container.registry if image else None
    with suppress(ValueError):  # checked with all other settings
        if registry and parse_reference(image).server != registry.server:
            return {"container.registry": dict.fromkeys(registry.__struct_fields__, "")}
    return {}


def _replace_launcher(app: App, request: TrainRequest) -> TrainRequest:
    """Applies the words of a launcher such as torchrun in the command to `app`; options and job files override them."""
    config = app.config
    found = replace_launcher(
        request.command, launcher=find_engine(config.train.launcher, config.bootstrap.framework).name
    )
    if found is None:
        return request
    wanted, configured = found.settings.get("launcher"), config.train.launcher
    if wanted is not None and configured in SCHEDULERS:  # otherwise, it would run on nodes that are not assigned
        raise UsageError(
            f'{found.words}: on nodes from {SCHEDULERS[configured].title}, nothing starts processes as "{wanted}" does',
            hint=f"cluster train --launcher {wanted}, which uses nodes without {SCHEDULERS[configured].title}",
        )
    for key, value in found.settings.items():
        if key == "env":
            app.override("train.env", {**value, **request.overrides.get("train.env", {})})
        elif f"train.{key}" not in request.overrides:
            app.override(f"train.{key}", value)
    return replace(request, command=found.command, replaced=found.words)


class _NodeChoice:
    """Chooses the nodes of a job, without unhealthy ones.

    command: see Preparation. is_scheduled: a batch scheduler chooses the nodes. hosts: the value of [train] hosts, or
    the one for [train] nodes. prepared: what else the plan needs, set by find_nodes.
    """

    def __init__(self, app: App, command: tuple[str, ...], *, is_scheduled: bool) -> None:
        self._app, self._command, self._is_scheduled = app, command, is_scheduled
        self.hosts: tuple[str, ...] = ()
        self.prepared: Preparation

    def find_nodes(self) -> Nodes:
        """Returns the nodes. Raises ClusterError or a subclass.

        Connections to the nodes are being opened meanwhile: an AWS client alone takes a tenth of a second.
        """
        described: Future[Nodes] = Future()
        train = self._app.config.train
        self.prepared = Preparation(self._app, train, described, command=self._command)
        found = describe(self._app)
        check_head(found)
        if not self._app.has_instances:
            self.prepared.access.result()  # raises before any host is set up
        described.set_result(found)
        self._app.warn(*found.warnings, *found.differences)
        has_choice = bool(found.names) and not train.hosts  # without nodes, the set-up raises
        requested = _requested(self._app, found)
        self.hosts = found.select(train.nodes, requested=requested) if has_choice else train.hosts
        return found

    def choose_healthy(self, nodes: Nodes, hosts: Sequence[Host], connections: Connections) -> Sequence[Host]:
        """Returns the hosts to set up. Raises ConfigError for a line of -H that names no node, before any is changed.

        Raises the errors of leave_out_silent and leave_out_unhealthy, too.
        """
        config = self._app.config
        choose_hosts(config.train.hosts, hosts)
        if not self._app.has_instances:
            hosts = leave_out_silent(nodes, hosts, connections, train=config.train, warn=self._app.warn)
        healthy = leave_out_unhealthy(
            self._app,
            nodes,
            hosts,
            connections,
            hardware=self.prepared.hardware.result(),
            is_scheduled=self._is_scheduled,
        )
        if nodes.excluded and not config.train.hosts:
            self.hosts = nodes.select(config.train.nodes, requested=_requested(self._app, nodes))
        return healthy


def _requested(app: App, nodes: Nodes) -> int:
    return app.config.provision.nodes if app.has_instances else len(nodes.names)


def _report_job(app: App, job: Job, *, replaced: str) -> None:
    """Prints the settings that were chosen for the user, and the warnings. replaced: see TrainRequest."""
    app.warn(*job.warnings)
    lines = render_settings(job)
    lines[0] += f" (in place of {replaced})" if replaced else ""
    app.message("\n".join(lines[:1] if app.is_brief else lines))
