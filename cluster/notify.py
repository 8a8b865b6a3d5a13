"""[notify] of cluster.toml: the settings for a job's supervisor and for the head's watcher."""

import os
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from msgspec import to_builtins

from bootstrap.apply import ReadyNode
from bootstrap.notify import find_webhook
from bootstrap.ssh.connection import NodeConnection
from bootstrap.ssh.node_program import NodeProgram
from cluster.app import App
from foundation.errors import ClusterError
from foundation.progress import Event
from node.protocol import Notify

_START_S = 30.0


def find_notify(app: App) -> Notify | None:
    """Returns [notify] for a job's supervisor; None if it is not set. Raises ConfigError for a missing variable."""
    config = app.config.notify
    if not config.is_set:
        return None
    return Notify(cluster=app.config.name, webhook=find_webhook(config, os.environ), command=config.command)


def watch_events(app: App, head: ReadyNode, notify: Notify | None) -> None:
    """Has the head send the events of the nodes' own programs, or stops that if `notify` is None.

    Errors are warnings. On existing hosts, none of our programs ends nodes, and only jobs send events.
    """
    if not app.has_instances or (notify is None and not app.files.watched.exists()):
        return
    settings = None
    if notify is not None:
        settings = {**to_builtins(notify), "user": head.host.user}
    try:
        _set_watcher(head.connection, settings=settings)
        app.files.note_watched(is_watched=notify is not None)
    except ClusterError as error:
        what = f"[notify] sends no events but those of jobs: {error.message}"
        app.report(Event(kind="warn", what=what, where=head.host.name))


def _set_watcher(connection: NodeConnection, *, settings: Mapping[str, str | None] | None) -> None:
    """Starts the head's watcher (node/setup/notify.py) with these settings; None: ends it. Raises ClusterError."""
    hint = f"cluster ssh {connection.host.name}; then run it again"
    with closing(NodeProgram(connection, "notify", as_root=True)) as program:
        program.call(
            {"settings": settings}, dict[str, Any], timeout_s=_START_S, what="[notify] could not be set up", hint=hint
        )
