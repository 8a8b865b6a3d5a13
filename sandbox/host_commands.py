"""`shutdown` and its kin for hosts, which have no systemd: they ask process 1 to end the host in an orderly way."""

from sandbox.host_files import HostFile

# systemd(1), "Signals": SIGRTMIN+4 powers off, SIGRTMIN+5 reboots; 34 is the C library's SIGRTMIN (signal(7)).
POWER_OFF_SIGNAL = 38
REBOOT_SIGNAL = 39

COMMAND = f"""\
#!/bin/sh
# Ends this host: shutdown [-h|-P|-H|-r] [-c] [now|+MINUTES|HH:MM] [MESSAGE], poweroff, halt, reboot.
name=${{0##*/}}
signal={POWER_OFF_SIGNAL}
[ "$name" != reboot ] || signal={REBOOT_SIGNAL}
waiting=/run/shutdown.pid
when= cancel=
for word in "$@"; do
    case "$word" in
    -r | --reboot) signal={REBOOT_SIGNAL} ;;
    -h | -P | -H | --halt | --poweroff) signal={POWER_OFF_SIGNAL} ;;
    -c) cancel=yes ;;
    -*) ;;
    *) [ -n "$when" ] || when=$word ;;
    esac
done
if [ "$(id -u)" != 0 ]; then
    echo "$name: must be root" >&2
    exit 1
fi
if [ -e "$waiting" ]; then
    kill -- "-$(cat "$waiting")" 2>/dev/null
    rm -f "$waiting"
fi
[ -z "$cancel" ] || exit 0
[ "$name" = shutdown ] || when=now
case "${{when:-+1}}" in
now | +0) exec kill -"$signal" 1 ;;
+[0-9]*) seconds=$((${{when:-+1}} * 60)) ;;
[0-9]*:[0-9]*)
    seconds=$(($(date -d "$when" +%s) - $(date +%s)))
    [ "$seconds" -ge 0 ] || seconds=$((seconds + 86400))
    ;;
*)
    echo "$name: cannot read the time $when" >&2
    exit 1
    ;;
esac
setsid sh -c "echo \\$\\$ >$waiting; sleep $seconds; kill -$signal 1" </dev/null >/dev/null 2>&1 &
echo "Shutdown scheduled for $(date -d "+$seconds seconds"), use 'shutdown -c' to cancel."
"""


def render_commands() -> tuple[HostFile, ...]:
    """The commands, in the place of the machine's own."""
    return tuple(
        HostFile(path=f"/usr/sbin/{name}", content=COMMAND, mode=0o755)
        for name in ("shutdown", "poweroff", "halt", "reboot")
    )
