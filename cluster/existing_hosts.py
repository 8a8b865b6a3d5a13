"""`cluster up`, `status` and `down` for clusters of existing hosts, which are neither launched nor paid for."""

import shlex
from contextlib import closing
from datetime import UTC, datetime

from bootstrap.ssh.connections import on_all
from cluster.app import App, if_interrupted
from cluster.bring_up import check_inputs
from cluster.jobs import ask_for_job, end_jobs, require_ending, warn_uncopied
from cluster.nodes.hosts import HostSource
from cluster.nodes.other_hosts import memory_of, release
from cluster.nodes.source import Nodes
from cluster.session import BOOT_TIMEOUT_S, ready_nodes
from cluster.views.hosts import HostsStatus, HostState, render_hosts, render_hosts_status, status_document
from cluster.volumes import unmount_all
from foundation.errors import ClusterError
from foundation.remote_command import RemoteCommand
from provision.model import count

STATE_TIMEOUT_S = 20.0
_STATE = 'for env in "$HOME"/.cluster/env/*/.complete; do [ -e "$env" ] && echo ready; done; exit 0'


# -- up ----------------------------------------------------------------------------------------------------------------


def up(app: App, *, dry_run: bool) -> None:
    """Connects to the hosts and sets them up. Raises ClusterError or a subclass."""
    config = app.config
    check_inputs(app)
    nodes = HostSource(app).describe()
    nodes.find_hosts()  # raises before anything is printed
    if dry_run:
        app.print(render_hosts(find_states(app, nodes), columns=app.find_columns()))
        app.message("cluster up sets up these hosts, below ~/.cluster there; it launches nothing")
        return
    with (
        if_interrupted("cluster up completes the set-up, cluster down removes what it left on the hosts"),
        ready_nodes(app, nodes, wait_s=BOOT_TIMEOUT_S) as (ready, _),
    ):
        changed = any(node.changed for node in ready)
    hosts = [node.host for node in ready]
    states = [HostState(host=host, state="ready", slots=nodes.job_hosts.count(host.spec)) for host in hosts]
    app.print(render_hosts(states, columns=app.find_columns()))
    text = f"cluster {config.name} is ready: {count(len(ready), 'existing host')}, and nothing was launched"
    app.message(text if changed else f"{text}; there was nothing to do", style="green")
    app.message("next: cluster train; cluster down removes the cluster's files from the hosts")


# -- status ------------------------------------------------------------------------------------------------------------


def find_states(app: App, nodes: Nodes) -> tuple[HostState, ...]:
    """Returns the state of each host, asked in parallel. A host that does not answer is unreachable, not an error."""
    source = HostSource(app)

    def describe(name: str) -> HostState:
        host = nodes.hosts[name]
        slots = nodes.job_hosts.count(host.spec)
        try:
            with closing(source.connect(nodes.find_host(name), wait_s=STATE_TIMEOUT_S)) as connection:
                words = connection.run(RemoteCommand(_STATE), check=False, timeout_s=STATE_TIMEOUT_S).last_line
        except ClusterError as error:
            why = error.message.partition("\n")[0]
            return HostState(host=host, state="unreachable", slots=slots, why=why)
        return HostState(host=host, state="ready" if words == "ready" else "not-set-up", slots=slots)

    return tuple(on_all(nodes.names, describe))


def show_status(app: App, *, as_json: bool, wide: bool) -> None:
    """Prints the state of the hosts and the running job. Raises ClusterError when no host is listed."""
    nodes = HostSource(app).describe()
    find_job = ask_for_job(app, nodes)
    states = find_states(app, nodes)
    shown = HostsStatus(cluster=nodes.cluster, hosts=states, job=find_job(), now=datetime.now(UTC))
    text = render_hosts_status(shown, columns=app.find_columns(wide=wide))
    app.show(text, status_document(shown), as_json=as_json, wrapped=not wide)


# -- down --------------------------------------------------------------------------------------------------------------


def down(app: App, *, yes: bool, as_json: bool) -> None:
    """Ends the cluster's jobs, and removes its files and its key from the hosts.

    Raises ClusterError when a host could not be cleaned; the next `down` tries that host again.
    """
    memory = memory_of(app)
    known = memory.read().hosts
    done: list[str] = []
    failed: dict[str, ClusterError] = {}
    if known:
        listed = ", ".join(sorted(entry.spec for entry in known))
        app.message(
            f"existing hosts keep running; remove the cluster's key and ~/.cluster, with all jobs, on: {listed}"
        )
        nodes = _find_nodes(app)
        job = ask_for_job(app, nodes, is_brief=yes)() if nodes is not None else None
        warn_uncopied(app, job, yes=yes)
        if not yes:
            require_ending(app, "Remove all of this?", job)
        with if_interrupted("cluster down removes what is left"):
            jobs = frozenset(job for entry in known for job in entry.jobs)
            if nodes is not None:
                end_jobs(app, nodes, lambda record: [host.name for host in record.nodes if record.id in jobs])
                unmount_all(app, HostSource(app))
            done, failed = release(app)
    else:
        memory.forget(())
    if not failed:
        app.files.forget()
    left = [{"kind": f"set-up of a host of yours {spec}", "why": error.message} for spec, error in failed.items()]
    lines = [f"cluster {app.config.name}: cleaned {', '.join(sorted(done))}"] if done else []
    lines += [f"not cleaned: {spec}: {error.message.removeprefix(f'{spec}: ')}" for spec, error in failed.items()]
    text = "\n".join(lines or [f"cluster {app.config.name} has left nothing on existing hosts"])
    document = {"cluster": app.config.name, "gone": not left, "cleaned": sorted(done), "left": left}
    app.show(text, document, as_json=as_json)
    if left:
        hint = f"run cluster down again; if they no longer exist: rm {shlex.quote(str(memory.path))}"
        raise ClusterError(f"{len(left)} of {len(known)} hosts could not be cleaned", hint=hint)


def _find_nodes(app: App) -> Nodes | None:
    """Returns the hosts; None, with a warning, when cluster.toml no longer lists any that can be used."""
    try:
        return HostSource(app).describe()
    except ClusterError as error:
        app.message(
            f"cannot ask the head to stop jobs: {error.message}; each host is cleaned by itself", style="yellow"
        )
        return None
