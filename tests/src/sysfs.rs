//! This machine's sysfs with additional simulated devices, whose counters rise with time.

use std::{
    fs,
    os::unix::fs::{FileExt as _, symlink},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crate::stall_detector::be_realtime;

/// A copy of `/sys` made of links, with files added below `class`.
pub struct Sysfs {
    directory: tempfile::TempDir,
    rising: Vec<(PathBuf, u64)>,
}

/// A copy whose counters rise until it is dropped.
pub struct Rising {
    directory: tempfile::TempDir,
    stop: Arc<AtomicBool>,
    meter: Option<JoinHandle<()>>,
}

impl Sysfs {
    /// Creates a copy without these classes.
    pub fn without(classes: &[&str]) -> Self {
        let directory = tempfile::TempDir::new().expect("a directory");
        links(Path::new("/sys"), directory.path(), &["class"]);
        let class = directory.path().join("class");
        fs::create_dir(&class).expect("a directory");
        links(Path::new("/sys/class"), &class, classes);
        Self {
            directory,
            rising: Vec::new(),
        }
    }

    /// Creates a file below `class`.
    pub fn put(&self, file: &str, text: &str) {
        let path = self.directory.path().join("class").join(file);
        fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        fs::write(path, format!("{text}\n")).expect("written");
    }

    /// Creates the directory of a driver, which reports it as loaded.
    pub fn driver(&self, name: &str) {
        let module = self.directory.path().join("module");
        fs::remove_file(&module).expect("a link");
        fs::create_dir(&module).expect("a directory");
        links(Path::new("/sys/module"), &module, &[name]);
        fs::create_dir(module.join(name)).expect("a directory");
    }

    /// Creates a counter that rises by `rate` per µs.
    pub fn rise(&mut self, file: &str, rate: u64) {
        self.put(file, "0000000000000");
        self.rising
            .push((self.directory.path().join("class").join(file), rate));
    }

    /// Creates a RAPL zone with a power of `watts`.
    pub fn zone(&mut self, zone: &str, name: &str, watts: u64) {
        self.put(&format!("powercap/{zone}/name"), name);
        let range = format!("powercap/{zone}/max_energy_range_uj");
        self.put(&range, "262143328850");
        self.rise(&format!("powercap/{zone}/energy_uj"), watts);
    }

    /// Starts the counters.
    pub fn start(self) -> Rising {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let Self { directory, rising } = self;
        let meter = std::thread::spawn(move || {
            // A meter that does not rise for an interval is not connected, also if it only waits for a CPU.
            be_realtime();
            let begin = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                for (file, rate) in &rising {
                    let count = begin.elapsed().as_micros() * u128::from(*rate);
                    // A single write of constant length, so that no reader sees a partial value.
                    let file = fs::File::options().write(true).open(file).expect("opens");
                    let text = format!("{count:013}\n");
                    file.write_all_at(text.as_bytes(), 0).expect("written");
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        Rising {
            directory,
            stop,
            meter: Some(meter),
        }
    }
}

impl Rising {
    /// The root, for `--sysfs`.
    pub fn path(&self) -> &str {
        self.directory.path().to_str().expect("UTF-8")
    }
}

impl Drop for Rising {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(meter) = self.meter.take() {
            let _ = meter.join();
        }
    }
}

/// Links to all entries of a directory except `but`.
fn links(from: &Path, to: &Path, but: &[&str]) {
    for entry in fs::read_dir(from).expect("a directory").flatten() {
        if but.iter().all(|but| entry.file_name() != *but) {
            symlink(entry.path(), to.join(entry.file_name())).expect("a link");
        }
    }
}
