"""Output of nvidia-smi and the kernel on machines with NVIDIA's GPUs, without the parts that no code reads.

A10G and T4: shortened recordings of `nvidia-smi -q -x` on g5 and g4dn instances, driver 515.105.01. H100 and V100 are
not recorded but written in the form of drivers 590 and 440: the former has other names for throttling and SRAM errors.
"""

A10G = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v11.dtd">
<nvidia_smi_log>
    <driver_version>515.105.01</driver_version>
    <attached_gpus>1</attached_gpus>
    <gpu id="00000000:00:1E.0">
        <product_name>NVIDIA A10G</product_name>
        <clocks_throttle_reasons>
            <clocks_throttle_reason_gpu_idle>Active</clocks_throttle_reason_gpu_idle>
            <clocks_throttle_reason_sync_boost>Not Active</clocks_throttle_reason_sync_boost>
            <clocks_throttle_reason_sw_power_cap>Not Active</clocks_throttle_reason_sw_power_cap>
            <clocks_throttle_reason_hw_slowdown>Not Active</clocks_throttle_reason_hw_slowdown>
            <clocks_throttle_reason_hw_thermal_slowdown>Not Active</clocks_throttle_reason_hw_thermal_slowdown>
            <clocks_throttle_reason_hw_power_brake_slowdown>Not Active</clocks_throttle_reason_hw_power_brake_slowdown>
            <clocks_throttle_reason_sw_thermal_slowdown>Not Active</clocks_throttle_reason_sw_thermal_slowdown>
        </clocks_throttle_reasons>
        <ecc_errors>
            <volatile>
                <sram_correctable>0</sram_correctable>
                <sram_uncorrectable>0</sram_uncorrectable>
                <dram_correctable>0</dram_correctable>
                <dram_uncorrectable>0</dram_uncorrectable>
            </volatile>
            <aggregate>
                <sram_correctable>0</sram_correctable>
                <sram_uncorrectable>0</sram_uncorrectable>
                <dram_correctable>0</dram_correctable>
                <dram_uncorrectable>0</dram_uncorrectable>
            </aggregate>
        </ecc_errors>
        <retired_pages>
            <pending_blacklist>N/A</pending_blacklist>
            <pending_retirement>N/A</pending_retirement>
        </retired_pages>
        <remapped_rows>
            <remapped_row_corr>0</remapped_row_corr>
            <remapped_row_unc>0</remapped_row_unc>
            <remapped_row_pending>No</remapped_row_pending>
            <remapped_row_failure>No</remapped_row_failure>
        </remapped_rows>
        <clocks>
            <graphics_clock>210 MHz</graphics_clock>
        </clocks>
    </gpu>
</nvidia_smi_log>
"""
T4 = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v11.dtd">
<nvidia_smi_log>
    <driver_version>515.105.01</driver_version>
    <attached_gpus>1</attached_gpus>
    <gpu id="00000000:00:1E.0">
        <product_name>Tesla T4</product_name>
        <clocks_throttle_reasons>
            <clocks_throttle_reason_gpu_idle>Not Active</clocks_throttle_reason_gpu_idle>
            <clocks_throttle_reason_sw_power_cap>Not Active</clocks_throttle_reason_sw_power_cap>
            <clocks_throttle_reason_hw_slowdown>Not Active</clocks_throttle_reason_hw_slowdown>
            <clocks_throttle_reason_hw_thermal_slowdown>Not Active</clocks_throttle_reason_hw_thermal_slowdown>
            <clocks_throttle_reason_hw_power_brake_slowdown>Not Active</clocks_throttle_reason_hw_power_brake_slowdown>
            <clocks_throttle_reason_sw_thermal_slowdown>Not Active</clocks_throttle_reason_sw_thermal_slowdown>
        </clocks_throttle_reasons>
        <ecc_errors>
            <volatile>
                <sram_correctable>0</sram_correctable>
                <sram_uncorrectable>0</sram_uncorrectable>
                <dram_correctable>0</dram_correctable>
                <dram_uncorrectable>0</dram_uncorrectable>
            </volatile>
        </ecc_errors>
        <retired_pages>
            <multiple_single_bit_retirement>
                <retired_count>0</retired_count>
                <retired_pagelist>
                </retired_pagelist>
            </multiple_single_bit_retirement>
            <pending_blacklist>No</pending_blacklist>
            <pending_retirement>No</pending_retirement>
        </retired_pages>
        <remapped_rows>N/A</remapped_rows>
    </gpu>
</nvidia_smi_log>
"""
_H100_GPU = """    <gpu id="{bus}">
        <product_name>NVIDIA H100 80GB HBM3</product_name>
        <gpu_recovery_action>None</gpu_recovery_action>
        <clocks_event_reasons>
            <clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle>
            <clocks_event_reason_sw_power_cap>Not Active</clocks_event_reason_sw_power_cap>
            <clocks_event_reason_hw_slowdown>Not Active</clocks_event_reason_hw_slowdown>
            <clocks_event_reason_hw_thermal_slowdown>Not Active</clocks_event_reason_hw_thermal_slowdown>
            <clocks_event_reason_hw_power_brake_slowdown>Not Active</clocks_event_reason_hw_power_brake_slowdown>
            <clocks_event_reason_sw_thermal_slowdown>Not Active</clocks_event_reason_sw_thermal_slowdown>
        </clocks_event_reasons>
        <clocks_event_reasons_counters>
            <clocks_event_reasons_counters_sw_power_cap>25483012608 us</clocks_event_reasons_counters_sw_power_cap>
        </clocks_event_reasons_counters>
        <ecc_errors>
            <volatile>
                <sram_correctable>0</sram_correctable>
                <sram_uncorrectable_parity>0</sram_uncorrectable_parity>
                <sram_uncorrectable_secded>0</sram_uncorrectable_secded>
                <dram_correctable>0</dram_correctable>
                <dram_uncorrectable>0</dram_uncorrectable>
            </volatile>
            <aggregate>
                <sram_correctable>12</sram_correctable>
                <sram_uncorrectable_parity>0</sram_uncorrectable_parity>
                <sram_uncorrectable_secded>0</sram_uncorrectable_secded>
                <dram_correctable>3</dram_correctable>
                <dram_uncorrectable>1</dram_uncorrectable>
                <sram_threshold_exceeded>No</sram_threshold_exceeded>
            </aggregate>
            <channel_repair_pending>No</channel_repair_pending>
        </ecc_errors>
        <retired_pages>
            <pending_retirement>N/A</pending_retirement>
        </retired_pages>
        <remapped_rows>
            <remapped_row_corr>0</remapped_row_corr>
            <remapped_row_unc>1</remapped_row_unc>
            <remapped_row_pending>No</remapped_row_pending>
            <remapped_row_failure>No</remapped_row_failure>
        </remapped_rows>
    </gpu>
"""
H100_BUSES = tuple(f"00000000:{number}:00.0" for number in ("53", "64", "75", "86", "97", "A8", "B9", "CA"))
H100 = (
    '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n<nvidia_smi_log>\n'
    + "".join(_H100_GPU.format(bus=bus) for bus in H100_BUSES)
    + "</nvidia_smi_log>\n"
)
V100 = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v10.dtd">
<nvidia_smi_log>
    <gpu id="00000000:00:1E.0">
        <product_name>Tesla V100-SXM2-16GB</product_name>
        <clocks_throttle_reasons>
            <clocks_throttle_reason_hw_slowdown>Not Active</clocks_throttle_reason_hw_slowdown>
        </clocks_throttle_reasons>
        <ecc_errors>
            <volatile>
                <single_bit>
                    <device_memory>0</device_memory>
                    <total>0</total>
                </single_bit>
                <double_bit>
                    <device_memory>0</device_memory>
                    <total>0</total>
                </double_bit>
            </volatile>
        </ecc_errors>
        <retired_pages>
            <pending_blacklist>No</pending_blacklist>
            <pending_retirement>No</pending_retirement>
        </retired_pages>
    </gpu>
</nvidia_smi_log>
"""

# -- the kernel log ----------------------------------------------------------------------------------------------------

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
