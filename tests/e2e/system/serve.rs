//! The unit of `profiler serve` in docs/deploy under systemd with its complete sandbox, and its users.

use std::{os::unix::fs::MetadataExt as _, path::Path};

use e2e::{
    dataset::Dataset,
    runs::{Profiler, wait_until},
};

use super::{
    commands::{Service, as_user, install_unit, sh},
    unit::{known_columns, named, sources, written},
};

const FILES: [(&str, &str); 1] = [(
    "profiler-serve.service",
    include_str!("../../../docs/deploy/profiler-serve.service"),
)];
const WRITTEN: u64 = 8 << 20;
const UID: u64 = 2001;

/// Writes directly to the disk and marks an event.
fn work(file: &str) -> String {
    format!(
        "dd if=/dev/zero of={file} bs=1M count={} oflag=direct
         profiler mark event here; sleep 1",
        WRITTEN >> 20
    )
}

/// From the use of a few profiles. Each has a user of its own: those of one user are started no faster
/// than the credit of the user allows.
fn assert_limits_hold_64_profiles() {
    const MEASURED: u64 = 8;
    const FACTOR: u64 = 64 / MEASURED;
    sh("install -d -m 1777 /srv/load");
    let profiles: Vec<Service> = (0..MEASURED)
        .map(|number| {
            let name = format!("load{number}");
            let user = 3000 + number;
            let run = format!(
                "exec setpriv --reuid={user} --regid={user} --clear-groups \
                 profiler run -q --out /srv/load --run-id {name} -- sleep infinity"
            );
            Service::start(&name, &[], &run)
        })
        .collect();
    wait_until("all profiles", || {
        let has_rows = |number| Path::new(&format!("/srv/load/load{number}/usage")).exists();
        (0..MEASURED).all(has_rows)
    });
    let show = |property: &str| -> u64 {
        let value = sh(&format!(
            "systemctl show --value --property={property} profiler-serve"
        ));
        value
            .parse()
            .unwrap_or_else(|_| panic!("{property}: {value}"))
    };
    assert!(show("TasksCurrent") > MEASURED);
    for [used, limit] in [["MemoryCurrent", "MemoryMax"], ["TasksCurrent", "TasksMax"]] {
        let (used_by_some, most) = (show(used), show(limit));
        assert!(
            used_by_some * FACTOR < most,
            "{used}: {used_by_some} for {MEASURED} profiles, {most} allowed"
        );
    }
    drop(profiles);
}

#[test]
fn users_profile_by_the_sandboxed_service() {
    install_unit(&FILES);
    let socket = Path::new("/run/profiler-serve/socket");
    // systemd has waited until it listens.
    assert!(socket.exists());
    sh("install -d -o tester /srv/tester");
    let run = format!(
        "cd /srv/tester; code=0; profiler run -i 500ms --run-id own -- sh -c '{}; exit 7' || code=$?
         test $code = 7",
        work("/srv/tester/data")
    );
    let (succeeded, output) = as_user("tester", &run);
    assert!(succeeded, "{output}");
    assert!(output.contains("by the service of this node"), "{output}");
    let own = Dataset::new("/srv/tester/profiles/own".into());
    own.assert_complete();
    let work = work("/srv/root");
    let ended = Profiler::new()
        .args(["-i", "500ms", "--", "sh", "-c", &work])
        .finish();
    let by_root = ended.dataset();

    // The same sources and columns as for root, and the known counts.
    assert_eq!(sources(&own), sources(&by_root));
    let (known, expected) = (known_columns(&own), known_columns(&by_root));
    let missing: Vec<_> = expected.difference(&known).collect();
    assert!(missing.is_empty(), "null by the service: {missing:?}");
    for data in [&own, &by_root] {
        let processes = data.table("process");
        let direct = named(&processes, "comm", "dd");
        assert_eq!(direct.len(), 1, "{direct:?}");
        let pid = direct[0].u64("pid").expect("a pid");
        for table in ["file_io", "block_io"] {
            assert_eq!(written(data, table, pid), WRITTEN, "{table}");
        }
        let marks = data.table("region");
        assert_eq!(named(&marks, "name", "here").len(), 1, "{marks:?}");
    }
    let users = own.table("process");
    assert!(
        users.iter().all(|row| row.u64("uid") == Some(UID)),
        "{users:?}"
    );
    for path in own.files() {
        let owner = std::fs::metadata(&path).expect("a file").uid();
        assert_eq!(u64::from(owner), UID, "{}", path.display());
    }

    assert_limits_hold_64_profiles();

    // It restarts after its death, and a run of the user continues.
    let run = "cd /srv/tester; profiler run -i 500ms --run-id again -- \
               sh -c 'touch begun; until [ -e done ]; do sleep 0.1; done' >again.log 2>&1";
    let client = std::thread::spawn(move || as_user("tester", run));
    wait_until("the command", || Path::new("/srv/tester/begun").exists());
    sh("systemctl kill --signal=KILL profiler-serve");
    wait_until("the service is back", || {
        std::fs::read_to_string("/srv/tester/again.log")
            .is_ok_and(|text| text.contains("the service is back"))
    });
    sh("touch /srv/tester/done");
    let (succeeded, output) = client.join().expect("no panic");
    assert!(succeeded, "{output}");
    let losses = Dataset::new("/srv/tester/profiles/again".into()).manifest()["losses"].clone();
    assert_eq!(losses[0]["what"], "samples", "{losses}");
    // Messages have their priorities in the journal.
    sh(
        "mkdir -p /etc/profiler.d; echo '[serve]\nmax_sessions = x' > /etc/profiler.d/test.toml
        systemctl reload profiler-serve; sleep 2; rm /etc/profiler.d/test.toml",
    );
    let messages = |priority: &str| {
        sh(&format!(
            "journalctl --sync; journalctl --unit profiler-serve --output cat --priority {priority}"
        ))
    };
    let warnings = messages("warning");
    assert!(warnings.contains("was not reloaded: "), "{warnings}");
    assert!(!warnings.contains("serving at"), "{warnings}");
    let all = messages("debug");
    assert!(
        all.contains("profiler: serving at /run/profiler-serve/socket"),
        "{all}"
    );
    assert!(!all.contains("<6>"), "{all}");
    sh("systemctl disable --now profiler-serve");
}
