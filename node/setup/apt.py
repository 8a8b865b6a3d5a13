"""How automatic updates are stopped until the next boot: a fresh Ubuntu updates itself at its first boot."""

# Timers first, then the services that may be running, which end after their current package. One by one: systemctl
# stops none of several units if one is not installed.
STOP_UPDATES = """[ ! -d /run/systemd/system ] ||
for unit in apt-daily.timer apt-daily-upgrade.timer apt-daily.service apt-daily-upgrade.service \\
    unattended-upgrades.service; do
    timeout 300 systemctl stop "$unit" 2>/dev/null || :
done"""
"""Lines of a shell, for root."""
