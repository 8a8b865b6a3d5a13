"""User data, and the files and commands of cloud-init.

If the sandbox has the package cloud-init, hosts run its own stages. Otherwise they run scripts and boothooks, in the
layout of cloud-init. Source: cloud-init documentation, "User-data formats" and "Boot stages".
"""

import gzip
import json
import zlib

from ec2_sandbox.hosts.files import HostFile

CLOUD = "/var/lib/cloud"
INSTANCE = f"{CLOUD}/instance"
RUNNER = "/usr/lib/ec2-sandbox/run-user-data"
STATE = "/run/cloud-init"
OUTPUT_LOG = "/var/log/cloud-init-output.log"
# What programs read to learn that cloud-init has ended, cloud-init itself included if it is installed later.
FOUND = {"datasource": "DataSourceEc2Local", "errors": []}
RESULT = json.dumps({"v1": FOUND})
STATUS = json.dumps({"v1": {"stage": None, "modules-final": {"start": 1, "finished": 2, **FOUND}}})

# Runs the boothooks, the scripts for every boot and then those for the first boot, in order. Reports a failed script
# and continues. Scripts may leave processes running, so `tee` may not end: boot-finished is written once the last line
# is in the log, because the console then has the whole output.
RUN_SCRIPTS = f"""\
#!/bin/sh
# Runs at each boot when the network is up, as root; output goes to the console and to {OUTPUT_LOG}.
cd / || exit 1
rm -f {INSTANCE}/boot-finished
run() {{
    for script in "$1"/*; do
        [ -x "$script" ] || continue
        "$script" </dev/null || echo "cloud-init: $script ended with code $?"
    done
}}
{{
    sed 's/^/cloud-init: /' {INSTANCE}/warnings 2>/dev/null
    INSTANCE_ID=$(cat {CLOUD}/data/instance-id) run {INSTANCE}/boothooks
    run {CLOUD}/scripts/per-boot
    if [ ! -e {INSTANCE}/sem/scripts_user ]; then
        : >{INSTANCE}/sem/scripts_user
        run {INSTANCE}/scripts
    fi
    up=$(ps -o etimes= -p 1)
    line="Cloud-init v. sandbox finished at $(date -R). Datasource DataSourceEc2Local.  Up $((up)).00 seconds"
    echo "$line"
    # tee writes to the console before the log. If the log cannot be written (full disk), wait 10 s.
    tries=0
    until grep -qaF "$line" {OUTPUT_LOG} 2>/dev/null || [ $((tries += 1)) -gt 200 ]; do sleep 0.05; done
    mkdir -p {STATE}
    echo '{RESULT}' >{STATE}/result.json
    echo '{STATUS}' >{STATE}/status.json
    echo "$line" >{INSTANCE}/.boot-finished
    mv {INSTANCE}/.boot-finished {INSTANCE}/boot-finished
}} 2>&1 | tee -a {OUTPUT_LOG}
"""

# Launchers call this on a new host, usually as `cloud-init status --wait`.
CLOUD_INIT = f"""\
#!/bin/sh
case "$1" in
status)
    case " $* " in *" --wait "*) while [ ! -e {INSTANCE}/boot-finished ]; do sleep 0.2; done ;; esac
    if [ -e {INSTANCE}/boot-finished ]; then echo "status: done"; else echo "status: running"; fi
    ;;
--version | -v) echo "cloud-init (sandbox)" ;;
*)
    echo "cloud-init: without the package cloud-init, hosts have only the status command" >&2
    exit 2
    ;;
esac
"""

FOLDERS = {"text/x-shellscript": f"{INSTANCE}/scripts", "text/cloud-boothook": f"{INSTANCE}/boothooks"}  # by type
TYPES_BY_BEGINNING = (
    ("#!", "text/x-shellscript"),
    ("#cloud-boothook", "text/cloud-boothook"),
    ("#cloud-config", "text/cloud-config"),
    ("#include", "text/x-include-url"),
)

RUN_STAGES = """\
#!/bin/sh
# Runs at each boot when the network is up, as root; output goes to the console and to /var/log/cloud-init-output.log.
cd / || exit 1
# This stage would wait a minute for a DHCP server. It does without if it finds no DHCP client.
PATH=/usr/bin:/bin cloud-init init --local
cloud-init init
cloud-init modules --mode=config
cloud-init modules --mode=final
"""

# The address, the host keys, the name and the disk are the sandbox's, and hosts reach no package server.
CONFIG = """\
datasource_list: [Ec2]
network: {config: disabled}
preserve_hostname: true
locale: C.UTF-8
ssh_deletekeys: false
ssh_genkeytypes: [ed25519, ecdsa]
ssh: {emit_keys_to_console: false}
no_ssh_fingerprints: true
apt: {preserve_sources_list: true, conf: 'Acquire::Retries "0";'}
growpart: {mode: "off"}
resize_rootfs: false
system_info: {default_user: {name: ubuntu, gecos: Ubuntu, lock_passwd: false}}
"""


def render_first_boot(instance_id: str, user_data: bytes, *, has_cloud_init: bool) -> tuple[HostFile, ...]:
    """Returns what runs at boot, and the files by which launchers see that user data has run. Pure.

    has_cloud_init: whether the host installs the package, which reads user data from IMDS.
    """
    if has_cloud_init:
        return (
            HostFile(path=RUNNER, content=RUN_STAGES, mode=0o755),
            HostFile(path="/etc/cloud/cloud.cfg.d/99_ec2_sandbox.cfg", content=CONFIG),
        )
    folder, text = f"{CLOUD}/instances/{instance_id}", _unpacked(user_data).decode(errors="replace")
    scripts, warnings = [], ""
    if text.strip():
        kind = find_type(text)
        where = FOLDERS.get(kind)
        if where is None:
            warnings = f"user data of type {kind} does not run without cloud-init: ec2-sandbox install cloud-init\n"
        else:
            path = f"{where.replace(INSTANCE, folder)}/part-001"
            scripts.append(HostFile(path=path, content=text, mode=0o700, each_boot=kind == "text/cloud-boothook"))
    return (
        HostFile(path=RUNNER, content=RUN_SCRIPTS, mode=0o755),
        HostFile(path="/usr/bin/cloud-init", content=CLOUD_INIT, mode=0o755),
        HostFile(path=f"{CLOUD}/data/instance-id", content=f"{instance_id}\n"),
        HostFile(path=f"{folder}/sem/.keep", content=""),
        HostFile(path=f"{folder}/warnings", content=warnings),
        HostFile(path=f"{folder}/user-data.txt", content=user_data.decode(errors="replace"), mode=0o600),
        HostFile(path=INSTANCE, content=f"instances/{instance_id}", link=True),
        *scripts,
    )


def find_type(text: str) -> str:
    """Returns the content type of user data, by its beginning. Pure."""
    lowered = text.lstrip().lower()
    return next((kind for beginning, kind in TYPES_BY_BEGINNING if lowered.startswith(beginning)), "text/plain")


def _unpacked(raw: bytes) -> bytes:
    try:
        return gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw
    except (OSError, EOFError, zlib.error):  # not gzip, and not a script
        return raw
