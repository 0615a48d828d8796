//! The Debian package under systemd: installation, the enabled unit, upgrade, removal.

use std::{
    fs,
    path::{Path, PathBuf},
};

use e2e::{dataset::Dataset, runs::wait_until, setting};

use super::{
    commands::sh,
    unit::{known_columns, named},
};

const STATE: &str = "/var/lib/profiler";
const OVERRIDES: &str = "/etc/systemd/system/profiler.service.d";

fn runs() -> Vec<PathBuf> {
    let entries = fs::read_dir(STATE).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let mut runs: Vec<PathBuf> = paths
        .filter(|path| path.join("run.json").is_file())
        .collect();
    runs.sort();
    runs
}

fn property(name: &str) -> String {
    sh(&format!(
        "systemctl show --property={name} --value profiler"
    ))
}

#[test]
fn unit_of_the_package_runs_from_enable_to_removal() {
    // Other tests install the unit by hand.
    sh(&format!(
        "systemctl disable --now profiler || true
         rm -rf /etc/systemd/system/profiler.service {OVERRIDES} {STATE}
         systemctl daemon-reload"
    ));
    let package = setting("PROFILER_TEST_PACKAGE");
    let apt = "DEBIAN_FRONTEND=noninteractive apt-get -q -y";
    sh(&format!("{apt} install {package}"));
    // `is-enabled` fails if a unit is disabled.
    let state = sh("systemctl is-enabled profiler profiler-serve || true");
    assert_eq!(state, "disabled\ndisabled");
    assert_eq!(property("ActiveState"), "inactive");

    // The administrator's configuration, which an upgrade keeps. The disk of the test has less space
    // than the unit keeps free, for which it would remove the first run.
    let unit = sh("systemctl show --property=FragmentPath --value profiler");
    sh(&format!(
        "mkdir -p {OVERRIDES}
         (echo '[Service]'; echo ExecStart=
          sed -n '/^ExecStart=/s/--keep-free 5G/--keep-free 50M/p' {unit}) > {OVERRIDES}/space.conf
         systemctl daemon-reload"
    ));
    sh("systemctl enable --now profiler");
    wait_until("the first files of the run", || !runs().is_empty());
    let pid = property("MainPID");
    let program = fs::read_link(format!("/proc/{pid}/exe")).expect("it runs");
    assert_eq!(program, Path::new("/usr/bin/profiler"));
    assert_eq!(
        sh(&format!("stat -c %U /proc/{pid}")),
        "profiler",
        "not the user of the package"
    );
    sh("sh -c 'sleep 2.5; exit 9' || true");

    // An upgrade restarts the unit: the run ends, and the next one begins.
    sh(&format!("{apt} install --reinstall {package}"));
    wait_until("the first files of the next run", || runs().len() == 2);
    let ended = pid;
    let pid = property("MainPID");
    let command = sh(&format!("tr '\\0' ' ' < /proc/{pid}/cmdline"));
    assert!(command.contains("--keep-free 50M"), "{command}");
    assert_ne!(pid, ended, "the old program still runs");
    assert!(!Path::new(&format!("/proc/{ended}")).exists());

    // The removal of the package ends the run with its last sample.
    sh(&format!("{apt} remove profiler"));
    assert!(!Path::new("/usr/bin/profiler").exists());
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    assert_eq!(property("LoadState"), "not-found");
    let links = sh("find /etc/systemd/system -name profiler.service");
    assert_eq!(links, "", "the unit is still enabled");
    // Their names begin with their times.
    let [first, second] = <[PathBuf; 2]>::try_from(runs()).expect("two runs");
    Dataset::new(second).assert_complete();
    let data = Dataset::new(first);
    data.assert_complete();
    let processes = data.table("process");
    let sleeps = named(&processes, "comm", "sleep");
    assert!(!sleeps.is_empty(), "no command of the test");
    let ended = processes.iter().find(|row| row.i64("exit_code") == Some(9));
    assert!(ended.is_some(), "{processes:?}");
    let known = known_columns(&data);
    assert!(known.contains("sched.oncpu_ns"), "{known:?}");

    sh(&format!("{apt} purge profiler"));
    assert!(!runs().is_empty(), "data were removed");
    sh(&format!("rm -rf {STATE} {OVERRIDES}"));
}
