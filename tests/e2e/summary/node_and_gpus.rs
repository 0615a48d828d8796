//! Figures of the node and of GPUs.

use std::{io::Write as _, process::Command};

use e2e::{
    dataset::Dataset,
    mounts::LoopDevice,
    runs::{Finished, Profiler},
    sysfs::Sysfs,
};
use tempfile::TempDir;

use super::{assert_recomputed, document, summary};

/// A process that uses two GPUs of NVIDIA's library, in percent of the time.
pub fn gpu_run(utilization: [u32; 2]) -> Finished {
    let [first, second] = utilization;
    let mut target = Command::new("sleep").arg("60").spawn().expect("started");
    let pid = target.id();
    let sysfs = Sysfs::without(&["drm"]);
    sysfs.driver("nvidia");
    let library = TempDir::new().expect("a directory");
    crate::gpu::put_library(
        library.path(),
        &format!(
            "nvml count 2\ngpu0 uuid GPU-0\ngpu0 power 300000\ngpu0 utilization {first} 30\ngpu0 pci 0 193 0\ngpu0 memory 8589934592 0 2147483648\n\
             gpu0 compute {pid} 4096 4294967295 4294967295\ngpu0 samples {pid} 100 60 0 0 0\n\
             gpu0 field74.0 3 0\ngpu0 gpm 1\ngpu0 gpm_sample 1\ngpu0 gpm5 60.5\ngpu0 gpm10 33.5\n\
             gpu1 uuid GPU-1\ngpu1 power 100000\ngpu1 utilization {second} 10\ngpu1 pci 0 194 0\ngpu1 memory 8589934592 0 1073741824\n\
             gpu1 compute {pid} 1024 4294967295 4294967295\n"
        ),
    );
    let sysfs = sysfs.start();
    let finished = Profiler::new()
        .env("LD_LIBRARY_PATH", library.path())
        .args(["-i", "100ms", "-d", "1s", "--sysfs", sysfs.path()])
        .pid(pid)
        .finish();
    target
        .kill()
        .and_then(|()| target.wait())
        .expect("our child");
    finished
}

/// The node has a summary of its own, in which a write to a disk that is on another disk counts once.
#[test]
fn run_without_processes_has_figures_of_the_node() {
    let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let disk = LoopDevice::new(&directory.path().join("image"), 16);
    let sources = "system,cpu,disk,netdev,filesystem,timeline,overhead";
    let profiler = Profiler::new()
        .args(["--node", "-i", "100ms", "--source", sources])
        .start();
    let data = Dataset::new(profiler.run_dir());
    data.wait_for_samples("disk", 2);
    let file = std::fs::File::options().write(true).open(disk.path());
    let mut file = file.expect("a block device");
    file.write_all(&vec![1; 8 << 20]).expect("written");
    file.sync_all().expect("synced");
    data.wait_for_row("disk", "the loop device has written", |row| {
        row.text("device") == Some(disk.name()) && row.u64("write_bytes") > Some(0)
    });
    let finished = profiler.interrupt();
    let data = finished.dataset();
    let of = |condition: &str| -> u64 {
        let sum = "SELECT coalesce(sum(write_bytes), 0)::UBIGINT FROM disk WHERE NOT partition AND";
        data.value(&format!("{sum} {condition}"))
    };
    let (physical, virtual_) = (of("kind = 'physical'"), of("kind = 'virtual'"));
    assert!(virtual_ >= 8 << 20, "{virtual_}");
    let timeline = "SELECT sum(node_block_write_bytes)::UBIGINT FROM timeline";
    assert_eq!(data.value::<u64>(timeline), physical);
    let run = data.path().to_str().expect("UTF-8");
    let node = document(&[run])["runs"][0]["nodes"][0].clone();
    assert_eq!(node["node_disk_write_bytes"], physical as f64);
    let written = node["compat"]["perfpy"]["total_disk_io_write_mb"].as_f64();
    let off = written.expect("known") * 1_048_576.0 - physical as f64;
    assert!(off.abs() < 1.0, "{written:?} MiB, {physical} bytes");
    for text in [summary(&[run]), finished.stdout + &finished.stderr] {
        for (fact, what) in [
            ("CPUs", "% of"),
            ("memory", "in use ("),
            ("disks", "% full"),
        ] {
            let mut lines = text.lines();
            let line = lines.find(|line| line.trim_start().starts_with(fact));
            assert!(
                line.is_some_and(|line| line.contains(what)),
                "{fact}: {text}"
            );
        }
    }
}

/// Figures of the GPUs of NVIDIA's library, of all and of each.
#[test]
fn figures_of_gpus_equal_their_sql() {
    let finished = gpu_run([80, 40]);
    let data = finished.dataset();
    let known = assert_recomputed(&data);
    for name in [
        "gpu_utilization_mean_percent",
        "gpu_memory_utilization_max_percent",
        "gpu_power_max_w",
        "energy_j",
    ] {
        let of_gpu = ("gpu".to_owned(), name.to_owned());
        assert!(known.contains(&of_gpu), "{name}: {known:?}");
    }
    let run = document(&[data.path().to_str().expect("UTF-8")])["runs"][0].clone();
    assert_eq!(run["total"]["gpu_memory_bytes"], 5120.0);
    assert_eq!(run["processes"][0]["gpu_memory_bytes"], 5120.0);
    let text = summary(&[data.path().to_str().expect("UTF-8")]);
    assert!(
        text.contains("GPU memory") && text.contains("5.0 KiB"),
        "{text}"
    );
    let node = &run["nodes"][0];
    let power = node["gpu_power_mean_w"].as_f64().expect("known");
    assert!((power - 200.0).abs() < 1e-9, "{power}");
    let resources = &node["compat"]["pytyche"];
    assert_eq!(resources["gpu_util_mean_pct"], 60.0);
    assert_eq!(resources["gpu_util_max_pct"], 80.0);
    assert_eq!(resources["mem_util_mean_pct"], 20.0);
    assert_eq!(resources["power_watts_mean"], 200.0);
    let gpus = node["gpus"].as_array().expect("GPUs");
    let found: Vec<_> = gpus
        .iter()
        .map(|gpu| (gpu["uuid"].as_str(), gpu["gpu_power_max_w"].as_f64()))
        .collect();
    assert_eq!(
        found,
        [(Some("GPU-0"), Some(300.0)), (Some("GPU-1"), Some(100.0))]
    );
}
