//! Messages about the command line and the environment of the profiler.

use std::{
    collections::BTreeSet,
    fs::File,
    os::unix::fs::MetadataExt as _,
    path::Path,
    process::{Command, Stdio},
};

use e2e::{
    runs::{Finished, Profiler},
    setting,
    workload_driver::WorkloadDriver,
};

use crate::{WORKLOAD, errors::WITHOUT_BTF, report::profiler};

/// A short run without processes.
fn short() -> Profiler {
    Profiler::new().args(["--node", "--source", "system", "-d", "100ms"])
}

/// The lines before the message `profiling`.
fn lines_at_start(finished: &Finished) -> Vec<&str> {
    let lines = finished.stderr.lines();
    lines
        .take_while(|line| !line.starts_with("profiling "))
        .collect()
}

/// The hash is that with which `cargo xtask build` marks the object.
#[test]
fn version_names_the_programs() {
    let output = Command::new(setting("PROFILER_BIN"))
        .arg("--version")
        .output()
        .expect("it starts");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    let recorded = target.expect("target").join("bpf/sources");
    let hash = std::fs::read_to_string(recorded).expect("recorded");
    let programs = format!("\nprograms  {}\n", hash.trim());
    assert!(
        text.starts_with("profiler ") && text.contains(&programs),
        "{text}"
    );
    assert!(
        text.contains("\ncommit    ") && text.contains("\ntarget    "),
        "{text}"
    );
}

#[test]
fn continued_run_is_reported() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let run = || {
        let profiler = Profiler::writing_to(directory.path());
        let args = ["--node", "--source", "system", "-d", "100ms"];
        profiler.args(args).args(["--run-id", "same"]).finish()
    };
    let (first, second) = (run(), run());
    assert_eq!((first.code(), second.code()), (0, 0), "{}", second.stderr);
    assert!(!first.stderr.contains("continuing"), "{}", first.stderr);
    let reported =
        second.stderr.contains("continuing") && second.stderr.contains("1 earlier session");
    assert!(reported, "{}", second.stderr);
}

#[test]
fn strict_error_lists_all_missing_sources() {
    let workload = WorkloadDriver::new(WORKLOAD, 0);
    let refused = Profiler::wrapped_in(&WITHOUT_BTF)
        .args(["--strict", "--source", "net_io,block_io,gpu"])
        .pid(workload.pid())
        .finish();
    refused.assert_refused(6, "--strict");
    for name in ["net_io", "block_io", "gpu"] {
        assert!(refused.stderr.contains(name), "{name}: {}", refused.stderr);
    }
}

#[test]
fn missing_sources_are_reported_on_one_line() {
    let workload = WorkloadDriver::new(WORKLOAD, 0);
    let finished = Profiler::wrapped_in(&WITHOUT_BTF)
        .args(["-d", "100ms", "--source", "+gpu"])
        .pid(workload.pid())
        .finish();
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
    let lines = lines_at_start(&finished);
    assert_eq!(lines.len(), 1, "{lines:?}");
    for word in [
        "BTF",
        "limited:",
        "not available:",
        "sched",
        "gpu",
        "profiler check",
    ] {
        assert!(lines[0].contains(word), "{word}: {lines:?}");
    }
}

#[test]
fn no_environment_variable_is_required() {
    let finished =
        Profiler::wrapped_in(&["env", "-u", "USER", "-u", "SUDO_USER", "-u", "SUDO_UID"])
            .args(["--node", "--source", "system", "-d", "100ms"])
            .finish();
    assert_eq!(finished.dataset().manifest()["user"], "root");
}

/// The environment of `sudo profiler`.
#[test]
fn output_is_owned_by_the_sudo_user() {
    let finished = short()
        .env("SUDO_UID", "65534")
        .env("SUDO_GID", "65534")
        .finish();
    let data = finished.dataset();
    for path in data.files() {
        let found = std::fs::metadata(&path).expect("it is there");
        assert_eq!(
            (found.uid(), found.gid()),
            (65534, 65534),
            "{}",
            path.display()
        );
    }
    assert_eq!(data.manifest()["user"], "nobody");
}

#[test]
fn file_systems_are_in_the_first_sample() {
    let readings = || {
        let running = Profiler::new()
            .args(["--node", "--source", "filesystem,system", "-i", "1h"])
            .start();
        let finished = running.interrupt();
        let readings: u64 = finished
            .dataset()
            .value("SELECT count(DISTINCT ts) FROM filesystem");
        readings
    };
    // One reading at the first sample, one at the end. The first sample waits for 50 ms only, which
    // a busy machine can exceed, but not each time.
    assert!((0..5).any(|_| readings() == 2));
}

/// The lines at the end of a session and `profiler summary` are one computation.
#[test]
fn closing_lines_are_those_of_the_summary() {
    let script =
        "\"$WORKLOAD\" cpu 60; sh -c 'exit 3'; sh -c 'kill -9 $$'; \"$WORKLOAD\" cpu 40; exit 9";
    let finished = Profiler::new()
        .args(["-i", "100ms"])
        .env("WORKLOAD", WORKLOAD)
        .command(&["sh", "-c", script])
        .finish();
    assert_eq!(finished.code(), 9, "{}", finished.stderr);
    let data = finished.any_dataset();
    let run = data.path().to_string_lossy().into_owned();
    let page = profiler(&["summary", &run]);
    let closing = finished
        .stderr
        .lines()
        .skip_while(|line| !line.contains(" samples, "));
    let closing: Vec<_> = closing.collect();
    // The second line of the page begins with the date.
    let when = page.lines().nth(1).expect("a line");
    assert!(
        when.ends_with(closing[0]) && closing[0].ends_with("complete, exit code 9"),
        "{when}"
    );
    let facts: Vec<_> = page
        .lines()
        .skip(4)
        .take_while(|line| !line.is_empty())
        .collect();
    assert_eq!(closing[2..2 + facts.len()], facts, "{page}");
    let names: Vec<_> = facts.iter().map(|fact| fact.split(' ').next()).collect();
    for name in ["time", "memory", "processes", "profiler"] {
        assert!(names.contains(&Some(name)), "{name}: {page}");
    }
    let processes = facts.iter().find(|fact| fact.starts_with("processes"));
    assert!(
        processes
            .expect("a line")
            .ends_with("5, 2 failed, 1 killed by signals"),
        "{page}"
    );
    let line_of = |name: &str| {
        let line = closing.iter().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("no line {name}: {closing:?}"))
    };
    let top = line_of("top CPU    ");
    assert!(top.contains(" workload"), "{top}");
    // `4.14 s sha256sum (28962), run queue + blocked`
    let waits = line_of("top wait   ");
    let (_, process) = waits.split_once("s ").expect("a time");
    let (_, pid) = process.split_once(" (").expect("a process");
    let pid = pid.strip_suffix("), run queue + blocked");
    assert!(pid.is_some_and(|pid| pid.parse::<u32>().is_ok()), "{waits}");
    assert_eq!(line_of("dataset    "), run);
}

#[test]
fn full_or_closed_standard_output_is_reported_or_ignored() {
    let commands = [
        &["schema", "--json"][..],
        &["schema", "--markdown"],
        &["check"],
        &["events", "--cpus"],
        &["completions", "bash"],
        &["man"],
    ];
    for arguments in commands {
        let run = |stdout: Stdio| {
            let output = Command::new(setting("PROFILER_BIN"))
                .args(arguments)
                .stdout(stdout)
                .stderr(Stdio::piped())
                .output();
            let output = output.expect("it starts");
            let stderr = String::from_utf8(output.stderr).expect("UTF-8");
            (output.status.code(), stderr)
        };
        let full = File::options().write(true).open("/dev/full");
        let (code, stderr) = run(full.expect("the device exists").into());
        assert_eq!(code, Some(5), "{arguments:?}: {stderr}");
        assert!(
            stderr.contains("standard output: No space left"),
            "{stderr}"
        );
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        assert_eq!(
            run(writer.into()),
            (Some(0), String::new()),
            "{arguments:?}"
        );
    }
}

/// `profiler events --validate` agrees with `profiler check`.
#[test]
fn event_groups_are_validated_on_this_machine() {
    let profiler = |args: &[&str]| {
        let output = Command::new(setting("PROFILER_BIN")).args(args).output();
        let output = output.expect("it starts");
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let tried = profiler(&["events", "--validate"]);
    let checked: serde_json::Value =
        serde_json::from_str(&profiler(&["check", "--json"])).expect("JSON");
    let sources = checked["sources"].as_array().expect("a list");
    let perf = sources.iter().find(|source| source["source"] == "perf");
    let works = perf.expect("listed")["status"] != "unavailable";
    assert_eq!(!tried.contains("no PMU"), works, "{tried}");
}

/// `profiler check` has the status and default of each source, and each remedy once.
#[test]
fn check_lists_status_and_default_of_sources() {
    let profiler = |args: &[&str]| {
        let output = Command::new(setting("PROFILER_BIN")).args(args).output();
        String::from_utf8(output.expect("it starts").stdout).expect("UTF-8")
    };
    let table = profiler(&["check"]);
    let checked: serde_json::Value =
        serde_json::from_str(&profiler(&["check", "--json"])).expect("JSON");
    let sources = checked["sources"].as_array().expect("a list");
    let mut defaults = BTreeSet::new();
    for source in sources {
        let name = source["source"].as_str().expect("a name");
        let status = source["status"].as_str().expect("a status");
        assert!(
            ["ok", "limited", "unavailable"].contains(&status),
            "{source}"
        );
        let default = source["default"].as_bool().expect("a truth value");
        defaults.insert(default);
        let default = if default { "yes" } else { "no" };
        let has_line = table.lines().any(|line| {
            let words: Vec<&str> = line.split_whitespace().take(3).collect();
            words == [name, status, default]
        });
        assert!(has_line, "{name}: {table}");
    }
    assert_eq!(defaults, BTreeSet::from([false, true]));
    let remedies: Vec<&str> = table.lines().filter(|line| line.contains("→")).collect();
    let distinct: BTreeSet<&&str> = remedies.iter().collect();
    assert_eq!(remedies.len(), distinct.len(), "{table}");
    for (name, absent, remedy) in [
        (
            "gpu",
            "no supported GPU driver",
            "no action needed without a GPU",
        ),
        (
            "fabric",
            "no fabric adapter",
            "no action needed without one",
        ),
    ] {
        let source = sources.iter().find(|source| source["source"] == name);
        let source = source.expect("listed");
        let why = source["why"].as_str();
        let has_none = why.is_some_and(|why| why.starts_with(absent));
        assert_eq!(has_none, source["remedy"] == remedy, "{source}");
    }
}

#[test]
fn verbose_lines_have_time_level_host_and_module() {
    let finished = short().args(["--verbose"]).finish();
    let mut levels = Vec::new();
    for line in finished.stderr.lines() {
        let [time, level, _host, module, message] = line
            .splitn(5, " | ")
            .collect::<Vec<_>>()
            .try_into()
            .unwrap_or_else(|_| panic!("{line}"));
        assert!(time.len() == 24 && time.ends_with('Z'), "{line}");
        assert!(!module.is_empty() && !message.is_empty(), "{line}");
        levels.push(level);
    }
    assert!(
        levels.contains(&"INFO") && levels.contains(&"DEBUG"),
        "{levels:?}"
    );
    assert!(finished.stderr.contains("| sampler | sample 1: 1 rows in "));
    let plain = short().finish();
    assert!(!plain.stderr.contains(" | "), "{}", plain.stderr);
}
