//! Attacks on `profiler serve` by its clients.

use std::{
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    process::Command,
};

use e2e::{
    runs::wait_until,
    service_client::{ACCEPTED, Client, REFUSED, frame, request},
};
use rustix::process::{Pid, Signal, kill_process};

use crate::service::{ALICE, Service};

/// Sends bytes and returns the kind of the answer; `None` if the connection is closed without one.
fn answer(service: &Service, bytes: &[u8]) -> Option<u8> {
    let mut client = Client::of_root(&service.socket());
    client.send(bytes);
    client.message().map(|(kind, _)| kind)
}

/// A profile works as before.
#[track_caller]
pub fn assert_serves(service: &Service, uid: u32, name: &str) {
    let output = service.profiler(uid, name).args(["--", "true"]).output();
    let output = output.expect("it starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && stderr.contains("by the service"),
        "{stderr}"
    );
}

#[test]
fn malformed_requests_are_refused() {
    let service = Service::start(&[]);
    let request = |change: &str, value: &str| frame(1, request(change, value).as_bytes());
    let attacks = [
        frame(99, b""),
        frame(2, b""),
        frame(1, b"not JSON"),
        [&u32::MAX.to_le_bytes()[..], &1_u32.to_le_bytes()].concat(),
        request("\"protocol\":1", "\"protocol\":2"),
        request("\"threads\"", "\"out\":\"/etc\",\"threads\""),
        request("\"source\":null", "\"source\":\"usage --out=/etc\""),
        request("\"hostname\":null", "\"hostname\":\"../..\""),
        request("\"events\":null", "\"events\":\"@/etc/shadow\""),
        request("1000000000", "1"),
    ];
    for attack in attacks {
        let text = String::from_utf8_lossy(&attack).into_owned();
        assert_eq!(answer(&service, &attack), Some(REFUSED), "{text}");
    }
    // A request without processes: accepted, then nothing comes.
    let well_formed = request("null", "null");
    assert_eq!(answer(&service, &well_formed), Some(ACCEPTED));
    assert_serves(&service, ALICE, "after");
}

#[test]
fn processes_that_become_root_are_not_sent() {
    let service = Service::start(&[]);
    // A program with the set-user-ID bit, as sudo is.
    let become_root = service.path().join("become-root");
    let copied = Command::new("sh")
        .args(["-c", "cp \"$(command -v setpriv)\" \"$0\""])
        .arg(&become_root)
        .status();
    assert!(copied.expect("it starts").success());
    let set_user_id = std::fs::Permissions::from_mode(0o4755);
    std::fs::set_permissions(&become_root, set_user_id).expect("permissions");
    let script = "./become-root --reuid 0 sh -c 'id -u >became; exec sleep 1.5'; sleep 0.2";
    let output = service
        .profiler(ALICE, "root")
        .args(["--", "sh", "-c", script])
        .output()
        .expect("it starts");
    assert!(output.status.success());
    let became = std::fs::read_to_string(service.path().join("became"));
    assert_eq!(became.expect("a file").trim(), "0");
    let data = service.data("root");
    let (users, most): (u64, u32) = data.row("SELECT count(DISTINCT uid), max(uid) FROM process");
    assert_eq!((users, most), (1, ALICE));
    let sleeps: Vec<(String,)> = data.rows("SELECT cmdline FROM process WHERE comm = 'sleep'");
    assert_eq!(sleeps, [("sleep 0.2".to_owned(),)]);
}

#[test]
fn stopped_client_loses_only_its_own_rows() {
    let service = Service::start(&[]);
    let mut stopped = service
        .profiler(ALICE, "stopped")
        .args(["--", "sleep", "4"])
        .process_group(0)
        .spawn()
        .expect("it starts");
    wait_until("a run", || service.path().join("stopped/usage").exists());
    let pid = Pid::from_child(&stopped);
    kill_process(pid, Signal::STOP).expect("stopped");
    assert_serves(&service, ALICE, "meanwhile");
    std::thread::sleep(std::time::Duration::from_secs(1));
    kill_process(pid, Signal::CONT).expect("continued");
    assert!(stopped.wait().expect("our child").success());
    let data = service.data("stopped");
    let (samples, covered): (u64, u64) =
        data.row("SELECT count(*), sum(interval_ns)::UBIGINT FROM system");
    let losses = data.manifest()["losses"].clone();
    let lost = data.lost("rows of system");
    // A slow disk cannot take at once what has been read meanwhile: those rows are counted.
    let all = samples + data.missed_samples() + lost;
    assert!(all >= 39, "{all}, {samples} stored: {losses}");
    assert!(lost > 0 || covered >= 3_900_000_000, "{covered} ns");
}
