//! Sources of procfs and sysfs: two readings of a machine with one file of the fuzzer.
//!
//! The first byte selects the file; the rest is its content at the first reading and, after a line
//! `==`, at the second.

#![no_main]

use std::{cell::RefCell, path::PathBuf};

use libfuzzer_sys::fuzz_target;
use profiler::{
    host::Host,
    sources::{SourceSpec, cpu, disk, energy, fabric, gpu, host, netdev, system},
};
use test_support::{Reader, Tree};

/// Files and the sources that read them. Seeds begin with an index: append new files.
const FILES: [(&str, &SourceSpec); 54] = [
    ("proc/diskstats", &disk::SPEC),
    ("proc/net/dev", &netdev::SPEC),
    ("proc/stat", &cpu::SPEC),
    ("proc/stat", &system::SPEC),
    ("proc/loadavg", &system::SPEC),
    ("proc/meminfo", &system::SPEC),
    ("proc/vmstat", &system::SPEC),
    ("proc/pressure/cpu", &system::SPEC),
    ("proc/pressure/memory", &system::SPEC),
    ("proc/self/mountinfo", &host::SPEC),
    ("proc/cpuinfo", &host::SPEC),
    ("proc/cmdline", &host::SPEC),
    ("proc/sys/kernel/osrelease", &host::SPEC),
    ("sys/devices/system/cpu/possible", &host::SPEC),
    ("sys/devices/system/cpu/online", &host::SPEC),
    ("sys/devices/system/cpu/cpu0/cache/index0/size", &host::SPEC),
    (
        "sys/devices/system/cpu/cpu0/topology/core_cpus_list",
        &host::SPEC,
    ),
    (
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq",
        &cpu::SPEC,
    ),
    ("sys/devices/system/node/node0/meminfo", &host::SPEC),
    ("sys/kernel/security/lockdown", &host::SPEC),
    ("sys/class/net/eth0/speed", &host::SPEC),
    ("sys/class/net/eth0/type", &netdev::SPEC),
    ("sys/class/powercap/intel-rapl:0/energy_uj", &energy::SPEC),
    ("sys/class/powercap/intel-rapl:0/name", &energy::SPEC),
    (
        "sys/class/powercap/intel-rapl:0/max_energy_range_uj",
        &energy::SPEC,
    ),
    (
        "sys/class/powercap/intel-rapl:0/constraint_0_max_power_uw",
        &energy::SPEC,
    ),
    ("sys/class/powercap/intel-rapl:0:0/name", &energy::SPEC),
    ("sys/bus/event_source/devices/cpu/type", &host::SPEC),
    ("sys/class/infiniband/mlx5_0/ports/1/state", &fabric::SPEC),
    ("sys/class/infiniband/mlx5_0/ports/1/rate", &fabric::SPEC),
    (
        "sys/class/infiniband/mlx5_0/ports/1/link_layer",
        &fabric::SPEC,
    ),
    (
        "sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data",
        &fabric::SPEC,
    ),
    (
        "sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_errors",
        &fabric::SPEC,
    ),
    (
        "sys/class/infiniband/mlx5_0/ports/1/hw_counters/duplicate_request",
        &fabric::SPEC,
    ),
    (
        "sys/class/infiniband/mlx5_0/hw_counters/lifespan",
        &fabric::SPEC,
    ),
    (
        "sys/class/cxi/cxi0/device/telemetry/hni_sts_tx_ok_octets",
        &fabric::SPEC,
    ),
    ("sys/class/cxi/cxi0/device/port/speed", &fabric::SPEC),
    ("sys/class/hwmon/hwmon0/name", &energy::SPEC),
    ("sys/class/hwmon/hwmon0/energy1_input", &energy::SPEC),
    ("sys/class/hwmon/hwmon0/energy1_label", &energy::SPEC),
    ("sys/class/hwmon/hwmon0/power1_average", &energy::SPEC),
    ("sys/class/hwmon/hwmon0/power1_oem_info", &energy::SPEC),
    ("sys/cray/pm_counters/energy", &energy::SPEC),
    ("sys/cray/pm_counters/startup", &energy::SPEC),
    ("sys/class/power_supply/BAT0/power_now", &energy::SPEC),
    ("sys/class/power_supply/BAT0/status", &energy::SPEC),
    ("sys/class/drm/card0/device/uevent", &gpu::SPEC),
    ("sys/class/drm/card0/device/gpu_metrics", &gpu::SPEC),
    ("sys/class/drm/card0/device/gpu_busy_percent", &gpu::SPEC),
    ("sys/class/drm/card0/device/mem_info_vram_used", &gpu::SPEC),
    ("sys/class/drm/card0/device/pp_dpm_sclk", &gpu::SPEC),
    (
        "sys/class/drm/card0/device/hwmon/hwmon0/power1_average",
        &gpu::SPEC,
    ),
    ("sys/class/drm/card1/gt/gt0/rps_act_freq_mhz", &gpu::SPEC),
    ("proc/4242/fdinfo/5", &gpu::SPEC),
];

/// Separator of the contents.
const SEPARATOR: &[u8] = b"==\n";

/// The machine and its original files.
struct Machine {
    tree: Tree,
    host: Host,
    own: Vec<PathBuf>,
}

thread_local! {
    static MACHINE: RefCell<Machine> = RefCell::new(machine());
}

fn machine() -> Machine {
    let tree = Tree::of("server", "fuzz-devices");
    for (zone, name) in [("intel-rapl:0", "package-0"), ("intel-rapl:0:0", "dram")] {
        let directory = format!("sys/class/powercap/{zone}");
        tree.put(format!("{directory}/name"), name);
        tree.put(format!("{directory}/energy_uj"), "5\n");
        tree.put(format!("{directory}/max_energy_range_uj"), "262143328850\n");
    }
    for (path, text) in [
        ("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n"),
        (
            "sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data",
            "100\n",
        ),
        (
            "sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data",
            "100\n",
        ),
        (
            "sys/class/cxi/cxi0/device/telemetry/hni_sts_tx_ok_octets",
            "5@1700000000.5\n",
        ),
        ("sys/class/cxi/cxi0/device/port/link", "up\n"),
        ("sys/class/hwmon/hwmon0/name", "power_meter\n"),
        ("sys/class/hwmon/hwmon0/power1_average", "350000000\n"),
        ("sys/cray/pm_counters/energy", "5 J 1700000000000000 us\n"),
        ("sys/class/power_supply/BAT0/type", "Battery\n"),
        ("sys/class/power_supply/BAT0/status", "Discharging\n"),
        ("sys/class/power_supply/BAT0/power_now", "15000000\n"),
        (
            "sys/class/drm/card0/device/uevent",
            "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:c1:00.0\n",
        ),
        ("sys/class/drm/card0/device/gpu_busy_percent", "50\n"),
        (
            "sys/class/drm/card1/device/uevent",
            "DRIVER=xe\nPCI_SLOT_NAME=0000:03:00.0\n",
        ),
        (
            "proc/4242/fdinfo/5",
            "drm-driver:\tamdgpu\ndrm-client-id:\t7\n",
        ),
    ] {
        tree.put(path, text);
    }
    let opened = tree.path("proc/4242/fd/5");
    let _ = std::fs::create_dir_all(opened.with_file_name(""));
    let _ = std::os::unix::fs::symlink("/dev/dri/renderD128", opened);
    Machine {
        host: tree.host(),
        own: tree.files(),
        tree,
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((number, content)) = data.split_first() else {
        return;
    };
    let Some((path, spec)) = FILES.get(usize::from(*number)) else {
        return;
    };
    let mark = content
        .windows(SEPARATOR.len())
        .position(|window| window == SEPARATOR);
    let (first, second) = mark.map_or((content, content), |mark| {
        (&content[..mark], &content[mark + SEPARATOR.len()..])
    });
    MACHINE.with_borrow(|machine| {
        let own = machine.own.iter().any(|own| own.as_os_str() == *path);
        let before = own.then(|| machine.tree.get(path));
        machine.tree.put(path, first);
        // Both the host and its source read these files.
        let facts = std::ptr::eq(*spec, &raw const host::SPEC).then(|| machine.tree.host());
        let mut reader = Reader::open(spec, facts.as_ref().unwrap_or(&machine.host));
        let _ = reader.sample();
        machine.tree.put(path, second);
        let _ = reader.sample();
        let _ = reader.last();
        match before {
            Some(text) => machine.tree.put(path, text),
            None => machine.tree.remove(path),
        }
    });
});
