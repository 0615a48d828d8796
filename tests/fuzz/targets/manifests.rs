//! `run.json`, as read by recovery and `verify`, which change nothing outside the run.

#![no_main]

use std::fs;

use fuzz::{
    panics,
    run::{self, HOST, ROWS, Run},
};
use libfuzzer_sys::fuzz_target;
use profiler::{
    commands::verify::verify,
    output::dataset::{
        foreign_file::Trust,
        recover::{Hosts, abandoned_runs, recover, recover_abandoned},
    },
    sources::dataset_schema,
};

thread_local! {
    static RUN: Run = Run::new("manifests");
}

fuzz_target!(init: panics::install_hook(), |data: &[u8]| {
    RUN.with(|run| panics::guarded(|| check(run, data)));
});

fn check(run: &Run, data: &[u8]) {
    run.begin();
    run.put_journal(ROWS.0, 0, ROWS.1);
    run.put("run.json", data);
    // Next to the run, where names of temporary files could lead.
    let neighbour = run.out().join("neighbour.tmp");
    fs::write(&neighbour, "mine").unwrap();
    for directory in [".run.json.x", "usage/host=x"] {
        fs::create_dir_all(run.path().join(directory)).unwrap();
    }
    if let Ok(report) = verify(&run.path(), Trust::Own) {
        run::check(&report);
    }
    let recovered: Vec<_> = abandoned_runs(run.out(), HOST, None)
        .into_iter()
        .filter_map(|name| recover_abandoned(&run.out().join(name), HOST, None, dataset_schema()))
        .collect();
    let _ = recover(&run.path(), Hosts::All, dataset_schema(), Trust::Own);
    let report = verify(&run.path(), Trust::Own).unwrap();
    for recovered in recovered {
        let recovered = recovered.unwrap();
        assert!(recovered.is_complete(), "{recovered:?}");
        assert_eq!(report.hosts[HOST].in_journals, 0);
        assert_eq!(report.hosts[HOST].rows, recovered.rows[ROWS.0]);
    }
    assert_eq!(fs::read(&neighbour).unwrap(), b"mine");
    assert_eq!(fs::read_dir(run.out()).unwrap().count(), 2);
}
