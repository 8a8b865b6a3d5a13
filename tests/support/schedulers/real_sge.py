"""Real Grid Engine on the nodes of a sandbox cluster: qmaster on the head, execd on all of them."""

from project import Project
from scheduler_nodes import Nodes, find_nodes

PACKAGES = ("gridengine-master", "gridengine-exec", "gridengine-client")
ANSWERS = """\
gridengine-common shared/gridenginemaster string {master}
gridengine-common shared/gridenginecell string default
gridengine-common shared/gridengineconfig boolean true
"""
PARALLEL = """\
pe_name {name}
slots 999
user_lists NONE
xuser_lists NONE
start_proc_args /bin/true
stop_proc_args /bin/true
allocation_rule {rule}
control_slaves TRUE
job_is_first_task TRUE
urgency_slots min
accounting_summary FALSE
qsort_args NONE
"""
HOST = """\
hostname {name}
load_scaling NONE
complex_values NONE
user_lists NONE
xuser_lists NONE
projects NONE
xprojects NONE
usage_scaling NONE
report_variables NONE
"""


RULES = {"fill": "$fill_up", "one": "1", "two": "2"}
"""The parallel environments and their allocation rules."""
KILLED = r"its batch script was killed \(exit code 137\): .*|Grid Engine ended it \(qdel, .*\)"
"""The reasons that are reported after qdel: once the job has been accounted for, and before that."""


def set_up(project: Project) -> Nodes:
    """Installs Grid Engine on the nodes, with the queue all.q of 2 slots per node."""
    nodes = find_nodes(project)
    full = tuple(f"{host}.ec2.internal" for host in nodes.hosts)
    lines = "".join(
        f"{address} {name} {host}\n" for address, name, host in zip(nodes.addresses, full, nodes.hosts, strict=True)
    )
    answers = ANSWERS.format(master=full[0])
    # Grid Engine knows hosts by their names only.
    nodes.on_all_as_root(
        f"printf '127.0.0.1 localhost\\n%s' '{lines}' >/etc/hosts; printf %s '{answers}' | debconf-set-selections"
    )
    nodes.project.run("sandbox", "install", *PACKAGES)
    nodes.on_all_as_root("pkill -x sge_execd || true")
    nodes.as_root(nodes.head, _head_script(full))
    nodes.on_all_as_root("sleep 1; pgrep -x sge_execd || sge_execd")
    return nodes


def _head_script(full: tuple[str, ...]) -> str:
    files = {f"/tmp/host-{name}": HOST.format(name=name) for name in full}
    files |= {f"/tmp/{name}.pe": PARALLEL.format(name=name, rule=rule) for name, rule in RULES.items()}
    files["/tmp/group"] = "group_name @allhosts\nhostlist " + " ".join(full) + "\n"
    write = "\n".join(f"printf %s '{text}' >{path}" for path, text in files.items())
    hosts = "\n".join(f"as -ah {name}; as -as {name}; as -Ae /tmp/host-{name}" for name in full)
    parallel = "\n".join(f"as -Ap /tmp/{name}.pe" for name in RULES)
    return f"""
pgrep -x sge_qmaster || /etc/init.d/gridengine-master start
as() {{ runuser -u sgeadmin -- qconf "$@" || true; }}
for _ in $(seq 100); do runuser -u sgeadmin -- qconf -sh >/dev/null 2>&1 && break; sleep 0.2; done
umask 022
{write}
as -am ubuntu
{hosts}
as -Ahgrp /tmp/group
{parallel}
runuser -u sgeadmin -- qconf -sq | sed -e 's/^qname .*/qname all.q/' -e 's/^hostlist .*/hostlist @allhosts/' \\
    -e 's/^slots .*/slots 2/' -e 's/^load_thresholds .*/load_thresholds NONE/' -e 's/^shell .*/shell \\/bin\\/bash/' \\
    -e "s/^pe_list .*/pe_list {" ".join(RULES)}/" >/tmp/all.q
as -Aq /tmp/all.q
"""
