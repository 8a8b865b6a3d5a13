"""An instance's user data and its first boot, as cloud-init has them: which files and scripts a host gets for it.

Source: cloud-init documentation, "User-data formats" and "Boot stages".
"""

import email
import email.message
import gzip
import zlib
from dataclasses import dataclass

from sandbox.host_files import HostFile

CLOUD = "/var/lib/cloud"
INSTANCE = f"{CLOUD}/instance"
RUNNER = f"{CLOUD}/sandbox-run"
OUTPUT_LOG = "/var/log/cloud-init-output.log"
MAX_PARTS = 100

# First the boothooks and what is for every boot, then what is for the first boot alone, in their order; a script that
# fails is reported and the next one is run. Nobody waits for what a script leaves running in the background, nor
# therefore for the end of `tee`: that all is on the console when boot-finished is there has to be looked at.
RUN_SCRIPTS = f"""\
#!/bin/sh
# At each boot, when the network is up: as root, with the output on the console and in {OUTPUT_LOG}.
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
    # tee writes to the console before it writes to the log; where that cannot be written (a full disk), it has 10 s.
    tries=0
    until grep -qaF "$line" {OUTPUT_LOG} 2>/dev/null || [ $((tries += 1)) -gt 200 ]; do sleep 0.05; done
    echo "$line" >{INSTANCE}/.boot-finished
    mv {INSTANCE}/.boot-finished {INSTANCE}/boot-finished
}} 2>&1 | tee -a {OUTPUT_LOG}
"""

# What launchers ask a fresh host, most of all `cloud-init status --wait`.
CLOUD_INIT = f"""\
#!/bin/sh
case "$1" in
status)
    case " $* " in *" --wait "*) while [ ! -e {INSTANCE}/boot-finished ]; do sleep 0.2; done ;; esac
    if [ -e {INSTANCE}/boot-finished ]; then echo "status: done"; else echo "status: running"; fi
    ;;
--version | -v) echo "cloud-init (sandbox)" ;;
*)
    echo "cloud-init: the sandbox has only its status command" >&2
    exit 2
    ;;
esac
"""

FOLDERS = {  # of a part's content type
    "text/x-shellscript": f"{INSTANCE}/scripts",
    "text/x-shellscript-per-instance": f"{INSTANCE}/scripts",
    "text/x-shellscript-per-once": f"{INSTANCE}/scripts",
    "text/x-shellscript-per-boot": f"{CLOUD}/scripts/per-boot",
    "text/cloud-boothook": f"{INSTANCE}/boothooks",
}
TYPES_BY_BEGINNING = (
    ("#!", "text/x-shellscript"),
    ("#cloud-boothook", "text/cloud-boothook"),
    ("#cloud-config", "text/cloud-config"),
    ("#include", "text/x-include-url"),
    ("#part-handler", "text/part-handler"),
    ("#upstart-job", "text/upstart-job"),
    ("## template: jinja", "text/jinja2"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One part of the user data. `name`: its file name, when it has one."""

    kind: str
    content: str
    name: str = ""


def render_first_boot(instance_id: str, user_data: bytes) -> tuple[HostFile, ...]:
    """What is run at boot, and what launchers look at to see whether that is done. Pure."""
    parts = parse_user_data(user_data)
    folder = f"{CLOUD}/instances/{instance_id}"
    scripts, warnings = [], []
    for number, part in enumerate(parts, start=1):
        where = FOLDERS.get(part.kind)
        if where is None:
            warnings.append(f"the sandbox does not run user data of type {part.kind}")
            continue
        path = f"{where.replace(INSTANCE, folder)}/part-{number:03}"
        scripts.append(HostFile(path=path, content=part.content, mode=0o700))
    return (
        HostFile(path=RUNNER, content=RUN_SCRIPTS, mode=0o755),
        HostFile(path="/usr/bin/cloud-init", content=CLOUD_INIT, mode=0o755),
        HostFile(path=f"{CLOUD}/data/instance-id", content=f"{instance_id}\n"),
        HostFile(path=f"{folder}/sem/.keep", content=""),
        HostFile(path=f"{folder}/warnings", content="".join(f"{line}\n" for line in warnings)),
        HostFile(path=f"{folder}/user-data.txt", content=user_data.decode(errors="replace"), mode=0o600),
        HostFile(path=INSTANCE, content=f"instances/{instance_id}", link=True),
        *scripts,
    )


def parse_user_data(raw: bytes) -> tuple[Part, ...]:
    """The parts, the one when it is not a MIME multipart message; compressed ones unpacked. Pure."""
    raw = _unpacked(raw)
    if not raw.strip():
        return ()
    head = raw[:1024].lower()
    if head.startswith((b"content-type:", b"mime-version:", b"from ")) or b"\nmime-version:" in head:
        return tuple(_read_message(email.message_from_bytes(raw)))[:MAX_PARTS]
    text = raw.decode(errors="replace")
    return (Part(kind=_type_of(text), content=text),)


def _read_message(message: email.message.Message) -> list[Part]:
    parts = []
    for piece in message.walk():
        if piece.is_multipart():
            continue
        payload = piece.get_payload(decode=True)
        text = _unpacked(payload if isinstance(payload, bytes) else b"").decode(errors="replace")
        kind = piece.get_content_type()
        if kind in ("text/plain", "text/x-not-multipart", "application/octet-stream", "application/x-gzip"):
            kind = _type_of(text)
        parts.append(Part(kind=kind, content=text, name=piece.get_filename() or ""))
    return parts


def _type_of(text: str) -> str:
    lowered = text.lstrip().lower()
    return next((kind for beginning, kind in TYPES_BY_BEGINNING if lowered.startswith(beginning)), "text/plain")


def _unpacked(raw: bytes) -> bytes:
    try:
        return gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw
    except (OSError, EOFError, zlib.error):  # not gzip after all: it is then of a type that nobody runs
        return raw
