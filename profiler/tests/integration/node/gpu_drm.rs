//! `gpu` and `gpu_process` for AMD and Intel, on fixtures with the files of their drivers.

use std::{ffi::OsStr, fs, os::unix::fs::symlink, time::Duration};

use profiler::sources::{
    Support,
    gpu::{self, open, support},
};

use test_support::{Reader, Rows, Tree, stat};

/// Path of NVIDIA's library, which is missing.
const NONE: &str = "/nonexistent/libnvidia-ml.so.1";

const CARD: &str = "sys/class/drm/card1";

fn card(tree: &Tree, card: &str, driver: &str, bdf: &str) {
    let uevent = format!("DRIVER={driver}\nPCI_CLASS=38000\nPCI_SLOT_NAME={bdf}\n");
    tree.put(format!("{card}/device/uevent"), uevent);
    // A connector, which must not be taken for a card.
    tree.put(format!("{card}-DP-1/status"), "disconnected\n");
}

fn reader(tree: &Tree) -> Reader {
    Reader::opened(&tree.host(), Duration::from_secs(1), |context| {
        open(context, OsStr::new(NONE))
    })
}

/// Waits for the rows of both tables and the error, as at the end of a run.
fn read(reader: &mut Reader) -> (Rows, Rows, Option<String>) {
    let (batches, result) = reader.attempt(true);
    let of = |table: &str| {
        let found = batches.iter().find(|batch| batch.table.name == table);
        Rows(found.cloned())
    };
    let error = result.err().map(|error| error.to_string());
    (of("gpu"), of("gpu_process"), error)
}

/// A `gpu_metrics` table with these values (offset, value); all others are unavailable.
fn table(
    size: u16,
    format: u8,
    content: u8,
    words: &[(usize, u16)],
    longs: &[(usize, u64)],
) -> Vec<u8> {
    let mut table = vec![0xff; usize::from(size)];
    table[..2].copy_from_slice(&size.to_le_bytes());
    table[2..4].copy_from_slice(&[format, content]);
    for (offset, value) in words {
        table[*offset..offset + 2].copy_from_slice(&value.to_le_bytes());
    }
    for (offset, value) in longs {
        table[*offset..offset + 8].copy_from_slice(&value.to_le_bytes());
    }
    table
}

/// The table of an MI250X: version 1.3, HBM temperatures at 88, energy in 2^-16 J at 24.
fn mi250(energy: u64, throttlers: u64) -> Vec<u8> {
    let words = [
        (10, 61),
        (12, 62),
        (14, 63),
        (16, 98),
        (18, 31),
        (20, 7),
        (56, 1090),
        (60, 711),
        (62, 722),
        (88, 50),
        (92, 53),
    ];
    table(120, 1, 3, &words, &[(24, energy), (112, throttlers)])
}

fn amd(tree: &Tree) {
    card(tree, CARD, "amdgpu", "0000:c1:00.0");
    let device = format!("{CARD}/device");
    for (file, text) in [
        ("unique_id", "8a1b2c3d4e5f6071\n"),
        ("product_name", "AMD Instinct MI250X\n"),
        ("gpu_busy_percent", "97\n"),
        ("mem_busy_percent", "30\n"),
        ("mem_info_vram_total", "68702699520\n"),
        ("mem_info_vram_used", "1234567168\n"),
        ("mem_info_gtt_used", "4096\n"),
        ("pcie_replay_count", "4\n"),
        ("current_link_speed", "16.0 GT/s PCIe\n"),
        ("current_link_width", "16\n"),
        ("ras/umc_err_count", "ue: 1\nce: 20\n"),
        ("hwmon/hwmon3/power1_average", "312000000\n"),
        ("hwmon/hwmon3/power1_cap", "560000000\n"),
        ("hwmon/hwmon3/temp2_label", "junction\n"),
        ("hwmon/hwmon3/temp2_input", "61000\n"),
        ("hwmon/hwmon3/temp3_label", "mem\n"),
        ("hwmon/hwmon3/temp3_input", "58000\n"),
        ("hwmon/hwmon3/freq1_label", "sclk\n"),
        ("hwmon/hwmon3/freq1_input", "1700000000\n"),
        ("hwmon/hwmon3/freq2_label", "mclk\n"),
        ("hwmon/hwmon3/freq2_input", "1600000000\n"),
        ("hwmon/hwmon3/pwm1", "128\n"),
        ("hwmon/hwmon3/fan1_input", "1500\n"),
    ] {
        tree.put(format!("{device}/{file}"), text);
    }
    tree.put(format!("{device}/gpu_metrics"), mi250(1 << 20, 0));
}

#[test]
fn amd_accelerator() {
    let tree = Tree::of("vm", "gpu-amd");
    amd(&tree);
    assert_eq!(support(&tree.host(), OsStr::new(NONE)), Support::Ok);
    let mut reader = reader(&tree);
    assert_eq!(read(&mut reader).0.len(), 0);
    let device = format!("{CARD}/device");
    tree.put(format!("{device}/ras/umc_err_count"), "ue: 1\nce: 23\n");
    tree.put(
        format!("{device}/gpu_metrics"),
        mi250((1 << 20) + (100 << 16), 1 | 1 << 34),
    );
    let (gpus, processes, error) = read(&mut reader);
    assert_eq!((gpus.len(), processes.len(), error), (1, 0, None));
    for (column, watts) in [("power_w", 312.0), ("power_limit_w", 560.0)] {
        assert_eq!(gpus.fraction(0, column), Some(watts), "{column}");
    }
    for (column, value) in [
        ("index", 1),
        ("utilization", 97),
        ("memory_utilization", 30),
        ("media_utilization", 7),
        ("memory_total", 68_702_699_520),
        ("memory_used", 1_234_567_168),
        ("system_memory_used", 4096),
        ("sm_clock_hz", 1_700_000_000),
        ("memory_clock_hz", 1_600_000_000),
        ("energy_uj", 100_000_000),
        ("temperature", 61),
        ("memory_temperature", 58),
        ("fan_percent", 50),
        ("fan_rpm", 1500),
        ("pcie_replays", 0),
        ("pcie_generation", 4),
        ("pcie_width", 16),
        ("ecc_corrected", 3),
        ("ecc_uncorrected", 0),
        ("hotspot_temperature", 61),
        ("hbm_temperature", 53),
        ("vr_gfx_temperature", 61),
        ("vr_soc_temperature", 62),
        ("vr_memory_temperature", 63),
        ("soc_clock_hz", 1_090_000_000),
        ("video_clock_hz", 711_000_000),
        ("decoder_clock_hz", 722_000_000),
    ] {
        assert_eq!(gpus.get(0, column), Some(value), "{column}");
    }
    for (column, value) in [
        ("uuid", "8a1b2c3d4e5f6071"),
        ("vendor", "amd"),
        ("driver", "amdgpu"),
        ("name", "AMD Instinct MI250X"),
        ("bdf", "0000:c1:00.0"),
        ("throttle_reasons", "ppt0+temp_mem"),
    ] {
        assert_eq!(gpus.text(0, column).as_deref(), Some(value), "{column}");
    }
}

#[test]
fn facts_have_one_row_per_card() {
    let tree = Tree::of("vm", "gpu-drm-facts");
    amd(&tree);
    card(&tree, "sys/class/drm/card2", "xe", "0000:03:00.0");
    let device = format!("{CARD}/device");
    for (file, text) in [
        ("vbios_version", "113-D65201-045\n"),
        ("serial_number", "692231000123\n"),
        ("pp_dpm_sclk", "0: 500Mhz *\n1: 800Mhz\n2: 1700Mhz\n"),
        ("pp_dpm_mclk", "0: 400Mhz\n1: 1600Mhz *\n"),
        ("max_link_speed", "32.0 GT/s PCIe\n"),
        ("max_link_width", "16\n"),
    ] {
        tree.put(format!("{device}/{file}"), text);
    }
    tree.put("sys/module/amdgpu/version", "6.3.6\n");
    tree.put(
        "sys/class/drm/card2/device/tile0/gt0/freq0/rp0_freq",
        "2450\n",
    );
    let mut reader = reader(&tree);
    let (batches, result) = reader.attempt(true);
    assert!(result.is_ok(), "{result:?}");
    let found = batches
        .iter()
        .find(|batch| batch.table.name == "gpu_device");
    let devices = Rows(found.cloned());
    assert_eq!(devices.len(), 2);
    for (column, value) in [
        ("driver_version", "6.3.6"),
        ("vbios_version", "113-D65201-045"),
        ("serial", "692231000123"),
        ("bdf", "0000:c1:00.0"),
    ] {
        assert_eq!(devices.text(0, column).as_deref(), Some(value), "{column}");
    }
    for (row, column, value) in [
        (0, "memory_total", Some(68_702_699_520)),
        (0, "max_sm_clock_hz", Some(1_700_000_000)),
        (0, "max_memory_clock_hz", Some(1_600_000_000)),
        (0, "max_pcie_generation", Some(5)),
        (0, "max_pcie_width", Some(16)),
        (1, "max_sm_clock_hz", Some(2_450_000_000)),
        (1, "memory_total", None),
    ] {
        assert_eq!(devices.get(row, column), value, "{row} {column}");
    }
    let (batches, _) = reader.attempt(true);
    assert!(!batches.iter().any(|batch| batch.table.name == "gpu_device"));
}

/// Instinct accelerators have four of each clock.
#[test]
fn the_highest_of_several_clocks_is_reported() {
    for (content, size, soc) in [(4, 288, 256), (5, 360, 328), (6, 1664, 280), (7, 2208, 312)] {
        let tree = Tree::of("vm", &format!("gpu-clocks-{content}"));
        card(&tree, CARD, "amdgpu", "0000:c1:00.0");
        let words = [
            (4, 71),
            (6, 72),
            (8, 73),
            (soc, 1100),
            (soc + 2, 1200),
            (soc + 6, 1000),
            (soc + 8, 29),
            (soc + 18, 22),
        ];
        tree.put(
            format!("{CARD}/device/gpu_metrics"),
            table(size, 1, content, &words, &[]),
        );
        let mut reader = reader(&tree);
        read(&mut reader);
        let (gpus, _, error) = read(&mut reader);
        assert_eq!(error, None);
        for (column, value) in [
            ("soc_clock_hz", Some(1_200_000_000)),
            ("video_clock_hz", Some(29_000_000)),
            ("decoder_clock_hz", Some(22_000_000)),
            ("hotspot_temperature", Some(71)),
            ("memory_temperature", Some(72)),
            ("vr_soc_temperature", Some(73)),
            ("vr_gfx_temperature", None),
        ] {
            assert_eq!(gpus.get(0, column), value, "1.{content} {column}");
        }
    }
}

#[test]
fn amd_apu_is_read_from_its_metrics_table() {
    let tree = Tree::of("vm", "gpu-apu");
    card(&tree, CARD, "amdgpu", "0000:c1:00.0");
    // Version 2.4 has hundredths, version 2.2 has units.
    for (content, size, factor) in [(2, 128, 1), (4, 164, 100)] {
        let words = [
            (4, 55 * factor),
            (28, 42 * factor),
            (30, 3 * factor),
            (78, 600),
            (84, 533),
            (86, 534),
        ];
        let metrics = table(size, 2, content, &words, &[(120, 1 << 5)]);
        tree.put(format!("{CARD}/device/gpu_metrics"), metrics);
        let mut reader = reader(&tree);
        read(&mut reader);
        let (gpus, _, error) = read(&mut reader);
        assert_eq!(error, None);
        assert_eq!(gpus.get(0, "temperature"), Some(55));
        assert_eq!(gpus.get(0, "utilization"), Some(42));
        assert_eq!(gpus.get(0, "media_utilization"), Some(3));
        for (column, mhz) in [
            ("soc_clock_hz", 600),
            ("video_clock_hz", 533),
            ("decoder_clock_hz", 534),
        ] {
            assert_eq!(gpus.get(0, column), Some(mhz * 1_000_000), "{column}");
        }
        let reasons = gpus.text(0, "throttle_reasons");
        assert_eq!(reasons.as_deref(), Some("fppt"));
        assert_eq!(gpus.get(0, "energy_uj"), None);
    }
}

#[test]
fn energy_of_other_amd_chips_is_null() {
    let tree = Tree::of("vm", "gpu-navi");
    card(&tree, CARD, "amdgpu", "0000:03:00.0");
    let metrics = |energy| table(120, 1, 3, &[(16, 5)], &[(24, energy)]);
    tree.put(format!("{CARD}/device/gpu_metrics"), metrics(1));
    let mut reader = reader(&tree);
    read(&mut reader);
    tree.put(format!("{CARD}/device/gpu_metrics"), metrics(1 << 20));
    let (gpus, _, _) = read(&mut reader);
    assert_eq!(
        (gpus.get(0, "utilization"), gpus.get(0, "energy_uj")),
        (Some(5), None)
    );
}

#[test]
fn intel_cards() {
    let tree = Tree::of("vm", "gpu-intel");
    card(&tree, "sys/class/drm/card0", "i915", "0000:00:02.0");
    card(&tree, CARD, "xe", "0000:03:00.0");
    for (file, text) in [
        ("card0/gt/gt0/rps_act_freq_mhz", "1150\n"),
        ("card0/gt/gt0/throttle_reason_status", "1\n"),
        ("card0/gt/gt0/throttle_reason_pl1", "1\n"),
        ("card0/gt/gt0/throttle_reason_thermal", "0\n"),
        ("card0/device/hwmon/hwmon2/energy1_input", "1000\n"),
        ("card0/device/hwmon/hwmon2/power1_max", "75000000\n"),
        ("card1/device/tile0/gt0/freq0/act_freq", "2400\n"),
        ("card1/device/tile0/gt0/freq0/throttle/reason_pl1", "0\n"),
        ("card1/device/hwmon/hwmon4/energy1_input", "10\n"),
        ("card1/device/hwmon/hwmon4/energy1_label", "pkg\n"),
        ("card1/device/hwmon/hwmon4/energy2_input", "500\n"),
        ("card1/device/hwmon/hwmon4/energy2_label", "card\n"),
        ("card1/device/hwmon/hwmon4/temp2_input", "44000\n"),
        ("card1/device/hwmon/hwmon4/temp2_label", "pkg\n"),
        ("card1/device/hwmon/hwmon4/temp3_input", "50000\n"),
        ("card1/device/hwmon/hwmon4/temp3_label", "vram\n"),
    ] {
        tree.put(format!("sys/class/drm/{file}"), text);
    }
    let mut reader = reader(&tree);
    read(&mut reader);
    for (file, text) in [
        ("card0/device/hwmon/hwmon2/energy1_input", "26000\n"),
        ("card1/device/hwmon/hwmon4/energy2_input", "800\n"),
    ] {
        tree.put(format!("sys/class/drm/{file}"), text);
    }
    let (gpus, _, error) = read(&mut reader);
    assert_eq!((gpus.len(), error), (2, None));
    for (row, column, value) in [
        (0, "sm_clock_hz", 1_150_000_000),
        (0, "energy_uj", 25_000),
        (1, "sm_clock_hz", 2_400_000_000),
        (1, "energy_uj", 300),
        (1, "temperature", 44),
        (1, "memory_temperature", 50),
    ] {
        assert_eq!(gpus.get(row, column), Some(value), "{column}");
    }
    assert_eq!(gpus.fraction(0, "power_limit_w"), Some(75.0));
    assert_eq!(gpus.text(0, "throttle_reasons").as_deref(), Some("pl1"));
    assert_eq!(gpus.text(1, "throttle_reasons").as_deref(), Some("none"));
    assert_eq!(gpus.get(0, "utilization"), None);
}

/// 0 and 255 lanes of a link that is down, no limit, negative numbers.
#[test]
fn numbers_that_mean_unknown_are_null_without_error() {
    let tree = Tree::of("vm", "gpu-unknown");
    amd(&tree);
    let device = format!("{CARD}/device");
    let mut reader = reader(&tree);
    read(&mut reader);
    for (file, column, texts) in [
        ("current_link_width", "pcie_width", &["0", "255", "-1"][..]),
        ("hwmon/hwmon3/power1_cap", "power_limit_w", &["0", "-1"]),
        (
            "hwmon/hwmon3/temp3_input",
            "memory_temperature",
            &["-1", "-128000"],
        ),
        ("hwmon/hwmon3/fan1_input", "fan_rpm", &["-1"]),
    ] {
        let path = format!("{device}/{file}");
        let known = tree.get(&path);
        assert!(read(&mut reader).0.get(0, column).is_some(), "{column}");
        for text in texts {
            tree.put(&path, format!("{text}\n"));
            let (gpus, _, error) = read(&mut reader);
            assert_eq!((gpus.get(0, column), error), (None, None), "{file}: {text}");
        }
        tree.put(&path, known);
    }
}

#[test]
fn malformed_files_are_null_and_reported() {
    let tree = Tree::of("vm", "gpu-malformed");
    amd(&tree);
    let mut reader = reader(&tree);
    read(&mut reader);
    let busy = format!("{CARD}/device/gpu_busy_percent");
    for text in [
        "",
        "many\n",
        "101\n",
        "99999999999999999999999\n",
        "\0\u{fffd}",
    ] {
        tree.put(&busy, text);
        let (gpus, _, error) = read(&mut reader);
        assert_eq!(gpus.len(), 1, "{text:?}");
        // The metrics table also contains this value.
        assert_eq!(gpus.get(0, "utilization"), Some(98), "{text:?}");
        assert_eq!(gpus.get(0, "memory_utilization"), Some(30));
        let error = error.unwrap_or_else(|| panic!("{text:?} is not reported"));
        assert!(error.contains("gpu_busy_percent"), "{error}");
    }
    tree.remove(&busy);
    fs::create_dir(tree.path(&busy)).unwrap();
    assert!(read(&mut reader).2.expect("reported").contains("directory"));
    fs::remove_dir(tree.path(&busy)).unwrap();
    symlink(tree.path(&busy), tree.path(&busy)).unwrap();
    let (gpus, _, error) = read(&mut reader);
    assert_eq!(gpus.len(), 1);
    assert!(error.is_some(), "a loop");
    fs::remove_file(tree.path(&busy)).unwrap();
    let metrics = format!("{CARD}/device/gpu_metrics");
    for length in [0, 3, 4, 119] {
        tree.put(&metrics, &mi250(5, 0)[..length]);
        let (gpus, _, _) = read(&mut reader);
        assert_eq!((gpus.len(), gpus.get(0, "energy_uj")), (1, None));
    }
    tree.put(&metrics, vec![0; 1 << 20]);
    assert_eq!(read(&mut reader).0.len(), 1, "huge");
    // A suspended GPU is not read, because that would wake it.
    tree.put(format!("{CARD}/device/power/runtime_status"), "suspended\n");
    let (gpus, _, error) = read(&mut reader);
    assert_eq!((gpus.fraction(0, "power_w"), error), (None, None));
    // Removed and inserted again.
    tree.remove("sys/class/drm");
    let (gpus, _, error) = read(&mut reader);
    assert_eq!((gpus.len(), error), (0, None));
    amd(&tree);
    assert_eq!(read(&mut reader).0.len(), 0, "its baseline");
    assert_eq!(read(&mut reader).0.len(), 1);
}

/// An open file of a process.
fn open_file(tree: &Tree, pid: u32, fd: u32, target: &str, info: &str) {
    let directory = tree.path(format!("proc/{pid}/fd"));
    fs::create_dir_all(&directory).unwrap();
    let _ = fs::remove_file(directory.join(fd.to_string()));
    symlink(target, directory.join(fd.to_string())).unwrap();
    tree.put(format!("proc/{pid}/fdinfo/{fd}"), info);
    tree.put(format!("proc/{pid}/stat"), stat(pid, "a", 700));
}

fn info(client: u32, gfx: u64, compute: u64, vram: u64) -> String {
    format!(
        "pos:\t0\ndrm-driver:\tamdgpu\ndrm-client-id:\t{client}\ndrm-pdev:\t0000:c1:00.0\n\
         drm-resident-vram:\t{vram} KiB\ndrm-engine-gfx:\t{gfx} ns\ndrm-engine-compute:\t{compute} ns\n"
    )
}

const RENDER: &str = "/dev/dri/renderD128";

#[test]
fn clients_are_counted_once() {
    let tree = Tree::of("vm", "gpu-clients");
    amd(&tree);
    open_file(&tree, 50, 3, RENDER, &info(7, 100, 10, 4));
    open_file(&tree, 50, 4, RENDER, &info(7, 100, 10, 4));
    open_file(&tree, 50, 5, RENDER, &info(8, 1000, 20, 8));
    open_file(&tree, 51, 3, RENDER, &info(7, 100, 10, 4));
    open_file(&tree, 52, 3, "/dev/null", &info(9, 1, 1, 1));
    let mut reader = reader(&tree);
    let (_, processes, _) = read(&mut reader);
    assert_eq!(processes.len(), 0, "the baseline");
    for fd in [3, 4] {
        open_file(&tree, 50, fd, RENDER, &info(7, 150, 10, 4));
    }
    open_file(&tree, 50, 5, RENDER, &info(8, 999, 25, 8));
    // A new client, and one with more time than the interval.
    open_file(&tree, 53, 3, RENDER, &info(10, 3, 4, 16));
    open_file(&tree, 54, 3, RENDER, &info(11, 1 << 60, 0, 32));
    let (_, processes, error) = read(&mut reader);
    assert_eq!((processes.len(), error), (3, None));
    for (row, column, value) in [
        (0, "pid", Some(50)),
        (0, "index", Some(1)),
        (0, "memory_used", Some(12 << 10)),
        (0, "render_ns", Some(50)),
        (0, "compute_ns", Some(5)),
        (0, "engines_ns", Some(55)),
        (0, "copy_ns", None),
        (0, "sm_utilization", None),
        (1, "pid", Some(53)),
        (1, "render_ns", Some(3)),
        (1, "engines_ns", Some(7)),
        (2, "pid", Some(54)),
        (2, "render_ns", None),
        (2, "compute_ns", Some(0)),
        (2, "engines_ns", None),
        (2, "memory_used", Some(32 << 10)),
    ] {
        assert_eq!(processes.get(row, column), value, "{row} {column}");
    }
    assert_eq!(processes.text(0, "bdf").as_deref(), Some("0000:c1:00.0"));
    // A process ends; its shared client is counted for the other process.
    tree.remove("proc/50");
    open_file(&tree, 51, 3, RENDER, &info(7, 160, 10, 4));
    let (_, processes, _) = read(&mut reader);
    assert_eq!(processes.get(0, "pid"), Some(51));
    assert_eq!(processes.get(0, "render_ns"), Some(10));
}

#[test]
fn processes_without_clients_are_checked_rarely() {
    let tree = Tree::of("vm", "gpu-seldom");
    amd(&tree);
    open_file(&tree, 60, 3, "/dev/null", "");
    let mut reader = reader(&tree);
    for _ in 0..4 {
        read(&mut reader);
    }
    open_file(&tree, 60, 4, RENDER, &info(7, 1, 1, 4));
    let found = (0..9).position(|_| read(&mut reader).1.len() == 1);
    assert!(found.is_some_and(|after| after <= 8), "{found:?}");
    assert_eq!(read(&mut reader).1.len(), 1, "then at each reading");
}

#[test]
fn the_source_needs_a_supported_gpu() {
    let tree = Tree::of("vm", "gpu-none");
    let _ = fs::remove_dir_all(tree.path("sys/class/drm"));
    card(&tree, "sys/class/drm/card0", "bochs-drm", "0000:00:01.0");
    assert!(matches!(
        gpu::SPEC.support(&tree.host()),
        Support::Unavailable { .. }
    ));
    // A broken NVIDIA installation and a working card.
    card(&tree, CARD, "amdgpu", "0000:c1:00.0");
    assert_eq!(support(&tree.host(), OsStr::new(NONE)), Support::Ok);
    tree.put("sys/module/nvidia/version", "1\n");
    let broken = support(&tree.host(), OsStr::new(NONE));
    assert!(matches!(broken, Support::Limited { .. }), "{broken:?}");
}
