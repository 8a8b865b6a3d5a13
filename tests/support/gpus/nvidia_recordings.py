"""Messages of the kernel on machines with NVIDIA's GPUs."""

BOOT = """\
[    0.000000] Linux version 6.8.0-1021-aws (buildd@lcy02-amd64-095) (x86_64-linux-gnu-gcc-12)
[    4.120011] nvidia: loading out-of-tree module taints kernel.
[    4.523112] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  550.127.05  Release Build
"""
FELL_OFF = """\
[ 4254.197816] NVRM: GPU at PCI:0000:5d:00: GPU-f1906b9b-557a-e961-045c-9fe4be3ce012
[ 4254.197854] NVRM: GPU Board Serial Number: 1653923026510
[ 4254.197860] NVRM: Xid (PCI:0000:5d:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
[ 4254.197871] NVRM: GPU 0000:5d:00.0: GPU has fallen off the bus.
"""
FELL_OFF_DATED = (
    "Mar 21 20:18:56 ip-10-0-0-4 kernel: [   65.315783] NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', "
    "name=<unknown>, GPU has fallen off the bus.\n"
)
FELL_OFF_OLD = "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n"
REMAPPED = (
    "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate.\n"
)
OF_PROGRAM = (
    "NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 7, TPC 0)\n"
)
CHANNEL = "NVRM: Xid (0000:03:00): 14, Channel 00000001\n"
