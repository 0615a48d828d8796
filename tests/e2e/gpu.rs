//! `gpu` with a stub of NVIDIA's library (profiler/tests/nvml/stub.c).

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use e2e::{
    dataset::Dataset,
    rows::sum,
    runs::{Finished, ProcessGroup, Profiler, wait_until},
};
use tempfile::TempDir;

use crate::cgroup::Group;

/// Builds the stub library in a directory; the script has its values.
pub fn put_library(directory: &Path, script: &str) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../profiler/tests/nvml/stub.c");
    let library = directory.join("libnvidia-ml.so.1");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(source)
        .status();
    assert!(built.expect("a C compiler").success());
    fs::write(directory.join("libnvidia-ml.so.1.script"), script).expect("written");
}

/// This machine with NVIDIA's driver and the stub library.
pub struct Machine(TempDir);

impl Machine {
    pub fn new(script: &str) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let sysfs = directory.path().join("sys");
        fs::create_dir_all(sysfs.join("module/nvidia")).expect("a directory");
        for entry in fs::read_dir("/sys").expect("readable").flatten() {
            if entry.file_name() != "module" {
                symlink(entry.path(), sysfs.join(entry.file_name())).expect("a link");
            }
        }
        put_library(directory.path(), script);
        Self(directory)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn profiler(&self) -> Profiler {
        Profiler::new()
            .env("LD_LIBRARY_PATH", self.0.path())
            .args([Path::new("--sysfs"), &self.path("sys")])
    }

    /// Records the GPUs of a process.
    fn record(&self, pid: u32) -> Finished {
        self.profiler()
            .args(["--source", "gpu", "--interval", "50ms"])
            .args(["--duration", "300ms"])
            .pid(pid)
            .finish()
    }
}

/// UUIDs of the recorded GPUs.
fn gpus_of(finished: &Finished) -> Vec<String> {
    let rows = finished.dataset().table("gpu");
    let seen = rows.iter().filter_map(|row| row.text("uuid"));
    let seen: BTreeSet<&str> = seen.collect();
    seen.into_iter().map(str::to_owned).collect()
}

/// Two GPUs.
pub const GPU: &str = "nvml count 2\ngpu0 uuid GPU-0\ngpu0 power 300000\ngpu1 uuid GPU-1\n";

#[test]
fn gpu_and_its_process_are_recorded() {
    let mut target = Command::new("sleep").arg("60").spawn().expect("started");
    let pid = target.id();
    let machine = Machine::new(&format!(
        "{GPU}gpu0 compute {pid} 4096 4294967295 4294967295 1 5 4294967295 4294967295\n"
    ));
    let finished = machine
        .profiler()
        .args(["--interval", "100ms", "--duration", "1s"])
        .pid(pid)
        .finish();
    target
        .kill()
        .and_then(|()| target.wait())
        .expect("our child");
    let dataset = finished.dataset();
    dataset.assert_complete();
    let rows = dataset.table("gpu");
    let of = |uuid| {
        rows.iter()
            .filter(move |row| row.text("uuid") == Some(uuid))
    };
    let samples = dataset.table("system");
    let due = samples.len() as u64 + dataset.missed_samples();
    assert!(due >= 10, "{due}");
    // A reading is stored by the next sample, if it has ended.
    let readings = of("GPU-0").count();
    assert!(
        readings <= samples.len() && 2 * readings > samples.len(),
        "{readings} at {} samples",
        samples.len()
    );
    assert_eq!(readings, of("GPU-1").count());
    assert!(of("GPU-0").all(|row| row.f64("power_w") == Some(300.0)));
    assert!(of("GPU-1").all(|row| row.f64("power_w").is_none()));
    let spent: u64 = of("GPU-0").filter_map(|row| row.u64("interval_ns")).sum();
    let covered = sum(&samples, "interval_ns");
    assert!(
        (covered / 2..covered * 3 / 2).contains(&spent),
        "{spent} of {covered}"
    );
    let used = dataset.table("gpu_process");
    assert_eq!(used.len(), readings);
    // Process 1 is outside the target.
    assert!(used.iter().all(|row| row.u64("pid") == Some(pid.into())));
    let process = &dataset.table("process")[0];
    assert_eq!(used[0].i64("start_ts"), process.i64("start_ts"));
    assert_eq!(used[0].u64("memory_used"), Some(4096));
}

#[test]
fn only_visible_gpus_are_recorded() {
    let machine = Machine::new(GPU);
    let finished = machine
        .profiler()
        .env("CUDA_VISIBLE_DEVICES", "1")
        .args(["--source", "gpu", "--interval", "50ms"])
        .command(&["sleep", "0.3"])
        .finish();
    let rows = finished.dataset().table("gpu");
    assert!(!rows.is_empty());
    let seen: Vec<_> = rows
        .iter()
        .map(|row| (row.text("uuid"), row.i64("ts")))
        .collect();
    assert!(
        seen.iter().all(|(uuid, _)| *uuid == Some("GPU-1")),
        "{seen:?}"
    );
}

/// In a device cgroup, as with `ConstrainDevices` of Slurm, libraries number its GPUs from 0.
#[test]
fn gpus_that_slurm_gave_decide() {
    let record = |machine: &Machine, environment: &[(&str, &str)]| {
        let mut target = Command::new("sleep");
        let environment = environment.iter().copied();
        let target = ProcessGroup::start(target.arg("60").envs(environment));
        let finished = machine.record(target.pid());
        let told = finished.stderr.matches("can mean several GPUs").count();
        (gpus_of(&finished), told)
    };
    let gpus = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    let machine = Machine::new(GPU);
    let renumbered = [("SLURM_JOB_GPUS", "1"), ("CUDA_VISIBLE_DEVICES", "0")];
    assert_eq!(record(&machine, &renumbered), (gpus(&["GPU-1"]), 0));
    let of_the_node = [("SLURM_JOB_GPUS", "1"), ("CUDA_VISIBLE_DEVICES", "1")];
    assert_eq!(record(&machine, &of_the_node), (gpus(&["GPU-1"]), 0));
    let unknown = [("CUDA_VISIBLE_DEVICES", "0")];
    assert_eq!(record(&machine, &unknown), (gpus(&["GPU-0"]), 0));
    let machine = Machine::new("nvml count 3\ngpu0 uuid GPU-0\ngpu1 uuid GPU-1\ngpu2 uuid GPU-2\n");
    let either = [("SLURM_JOB_GPUS", "1,2"), ("CUDA_VISIBLE_DEVICES", "1")];
    assert_eq!(record(&machine, &either), (gpus(&["GPU-1", "GPU-2"]), 1));
}

/// A container has the files of its GPUs alone.
#[test]
fn device_files_of_a_mount_namespace_decide() {
    let script = "mount -t tmpfs tmpfs /dev && mknod /dev/nvidia1 c 195 1 && exec sleep 60";
    let mut target = Command::new("unshare");
    target.args(["-m", "sh", "-c", script]);
    let target = ProcessGroup::start(target.env("CUDA_VISIBLE_DEVICES", "0"));
    let name = format!("/proc/{}/comm", target.pid());
    wait_until("its /dev", || {
        fs::read_to_string(&name).expect("it is alive") == "sleep\n"
    });
    let machine = Machine::new(&format!("{GPU}gpu0 minor 0\ngpu1 minor 1\n"));
    assert_eq!(gpus_of(&machine.record(target.pid())), ["GPU-1"]);
}

/// A `/dev` on a file system that nobody serves.
#[test]
fn device_files_that_never_answer_delay_one_reading() {
    let directory = TempDir::new().expect("a temporary directory");
    let ready = directory.path().join("ready");
    let script = "import ctypes, os, sys, time\n\
                  options = b'rootmode=40000,user_id=0,group_id=0,fd=%d' % os.open('/dev/fuse', 2)\n\
                  assert ctypes.CDLL(None).mount(b'none', b'/dev', b'fuse', 0, options) == 0\n\
                  open(sys.argv[1], 'w')\n\
                  time.sleep(60)";
    let mut target = Command::new("unshare");
    target.args(["-m", "python3", "-c", script]).arg(&ready);
    let target = ProcessGroup::start(target.env("CUDA_VISIBLE_DEVICES", "1"));
    wait_until("its /dev", || ready.exists());
    let machine = Machine::new(&format!("{GPU}gpu0 minor 0\ngpu1 minor 1\n"));
    let running = machine
        .profiler()
        .args(["--source", "gpu", "--interval", "50ms"])
        .pid(target.pid())
        .start();
    let run = Dataset::new(running.run_dir());
    run.wait_for_row("gpu", "a reading", |row| row.text("uuid").is_some());
    let finished = running.interrupt();
    // Nothing is known of its devices.
    assert_eq!(gpus_of(&finished), ["GPU-1"]);
    let lost = finished.dataset().manifest()["losses"].to_string();
    assert!(lost.contains("memory readings"), "{lost}");
}

/// A device cgroup of version 1, which shows only what it allows.
#[test]
fn devices_of_a_cgroup_decide() {
    let target = ProcessGroup::start(
        Command::new("sleep")
            .arg("60")
            .env("CUDA_VISIBLE_DEVICES", "0"),
    );
    let group = Group::new(&["-t", "cgroup", "-o", "devices"]);
    // Only a cgroup without children can deny everything.
    let inner = group.outer().join("inner");
    fs::write(inner.join("devices.deny"), "a").expect("denied");
    fs::write(inner.join("devices.allow"), "c 195:1 rw").expect("allowed");
    crate::cgroup::put(target.pid(), &inner);
    let machine = Machine::new(&format!("{GPU}gpu0 minor 0\ngpu1 minor 1\n"));
    assert_eq!(gpus_of(&machine.record(target.pid())), ["GPU-1"]);
    drop(target);
    drop(group);
}

/// The numbers in the environment are those of another order: the driver knows better.
#[test]
fn gpus_of_listed_processes_are_recorded() {
    let target = ProcessGroup::start(
        Command::new("sleep")
            .arg("60")
            .env("CUDA_VISIBLE_DEVICES", "0"),
    );
    let pid = target.pid();
    let machine = Machine::new(&format!(
        "{GPU}gpu1 compute {pid} 4096 4294967295 4294967295\n"
    ));
    let finished = machine
        .profiler()
        .args(["--source", "gpu", "--interval", "50ms", "--duration", "1s"])
        .pid(pid)
        .finish();
    let rows = finished.dataset().table("gpu");
    assert!(!rows.is_empty());
    let others = rows.iter().filter(|row| row.text("uuid") != Some("GPU-1"));
    assert_eq!(others.count(), 0, "{rows:?}");
    let used = finished.dataset().table("gpu_process");
    assert!(!used.is_empty());
    assert!(
        used.iter().all(|row| row.text("uuid") == Some("GPU-1")),
        "{used:?}"
    );
}

/// Two cards of AMD, with NVIDIA's driver missing.
fn amd_cards() -> TempDir {
    let directory = TempDir::new().expect("a temporary directory");
    let sysfs = directory.path().join("sys");
    fs::create_dir_all(sysfs.join("class")).expect("a directory");
    let link_all = |from: &Path, to: &Path, except: &str| {
        for entry in fs::read_dir(from).expect("readable").flatten() {
            if entry.file_name() != except {
                symlink(entry.path(), to.join(entry.file_name())).expect("a link");
            }
        }
    };
    link_all(Path::new("/sys"), &sysfs, "class");
    link_all(Path::new("/sys/class"), &sysfs.join("class"), "drm");
    for (card, bus, id) in [(0, "03", "aa01"), (1, "c1", "bb02")] {
        let device = sysfs.join(format!("class/drm/card{card}/device"));
        fs::create_dir_all(&device).expect("a directory");
        let uevent = format!("DRIVER=amdgpu\nPCI_SLOT_NAME=0000:{bus}:00.0\n");
        fs::write(device.join("uevent"), uevent).expect("written");
        fs::write(device.join("unique_id"), format!("{id}\n")).expect("written");
    }
    directory
}

#[test]
fn variables_of_rocm_select_cards() {
    let machine = amd_cards();
    for (name, value, seen) in [
        ("ROCR_VISIBLE_DEVICES", "1", "bb02"),
        ("HIP_VISIBLE_DEVICES", "0", "aa01"),
        ("ROCR_VISIBLE_DEVICES", "GPU-aa01", "aa01"),
    ] {
        let finished = Profiler::new()
            .env(name, value)
            .args([Path::new("--sysfs"), &machine.path().join("sys")])
            .args(["--source", "gpu", "--interval", "50ms"])
            .command(&["sleep", "0.3"])
            .finish();
        let dataset = finished.dataset();
        for table in ["gpu", "gpu_device"] {
            let rows = dataset.table(table);
            assert!(!rows.is_empty(), "{name} {table}");
            let others = rows.iter().filter(|row| row.text("uuid") != Some(seen));
            assert_eq!(others.count(), 0, "{name}={value} {table}");
        }
    }
}

/// The environment of the profiler is irrelevant: it can be started by root, a prolog or another
/// step.
#[test]
fn visible_devices_of_the_target_decide() {
    let target = ProcessGroup::start(
        Command::new("sleep")
            .arg("60")
            .env("CUDA_VISIBLE_DEVICES", "1"),
    );
    let group = Group::new(&["-t", "cgroup2"]);
    crate::cgroup::put(target.pid(), group.outer());
    let machine = Machine::new(GPU);
    let pid = target.pid().to_string();
    let path = group.outer().to_str().expect("UTF-8");
    for of_target in [["--pid", &pid], ["--cgroup", path]] {
        let finished = machine
            .profiler()
            .env("CUDA_VISIBLE_DEVICES", "0")
            .args([
                "--source",
                "gpu",
                "--interval",
                "50ms",
                "--duration",
                "300ms",
            ])
            .args(of_target)
            .finish();
        let rows = finished.dataset().table("gpu");
        assert!(!rows.is_empty(), "{of_target:?}");
        assert!(
            rows.iter().all(|row| row.text("uuid") == Some("GPU-1")),
            "{of_target:?}: {rows:?}"
        );
    }
    drop(target);
    drop(group);
}

#[test]
fn hanging_nvml_delays_nothing() {
    let machine = Machine::new(&format!("{GPU}gpu1 power sleep 1000000 1\n"));
    // A run that waits for the library does not end.
    let finished = machine
        .profiler()
        .args(["--node", "--source", "gpu,system,overhead"])
        .args(["--interval", "100ms", "--duration", "1s"])
        .finish();
    let dataset = finished.dataset();
    assert!(!dataset.path().join("gpu").exists());
    let ticks = dataset.table("system").len();
    assert!(ticks >= 5, "{ticks}");
    assert!(finished.stderr.contains("source gpu: nvidia: a reading"));
    let overhead = dataset.table("overhead");
    let errors = overhead
        .iter()
        .filter(|row| row.text("component") == Some("gpu"));
    let errors: u64 = errors.filter_map(|row| row.u64("errors")).sum();
    // The first sample starts a reading; a later one may start another before the first returns.
    assert!(errors + 3 >= ticks as u64, "{errors} of {ticks}");
}
