//! The unit in docs/deploy: the profiler has all required privileges, and no others.

use std::{collections::BTreeMap, os::unix::fs::MetadataExt as _, path::Path, process::Command};

use e2e::{dataset::Dataset, runs::Profiler, setting};

/// The user `nobody`.
const USER: u32 = 65534;

fn unit() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/deploy/profiler.service");
    std::fs::read_to_string(path).expect("the unit")
}

/// The value of a setting of the unit.
fn value<'a>(unit: &'a str, name: &str) -> &'a str {
    let mut lines = unit
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let value = lines.next().unwrap_or_else(|| panic!("no {name}="));
    assert_eq!(lines.next(), None, "{name}= twice");
    value
}

/// The status of each source in `run.json`.
fn sources(data: &Dataset) -> BTreeMap<String, String> {
    let manifest = data.manifest();
    let sources = manifest["sources"].as_array().expect("a list");
    let text = |value: &serde_json::Value| value.as_str().expect("text").to_owned();
    sources
        .iter()
        .map(|source| (text(&source["name"]), text(&source["status"])))
        .collect()
}

/// Removes an option from the arguments; returns its value.
fn take<'a>(arguments: &mut Vec<&'a str>, option: &str) -> &'a str {
    let place = arguments.iter().position(|word| *word == option);
    let place = place.expect("the option");
    arguments.drain(place..place + 2).nth(1).expect("its value")
}

/// The program as [`USER`], with these capabilities and no others.
fn with_capabilities(program: &Path, capabilities: &str) -> Command {
    let mut set = "-all".to_owned();
    for name in capabilities.split_whitespace() {
        set += ",+";
        set += &name.trim_start_matches("CAP_").to_lowercase();
    }
    let id = USER.to_string();
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", &id, "--regid", &id])
        .args(["--clear-groups", "--no-new-privs"])
        .args(["--bounding-set", &set, "--inh-caps", &set])
        .args(["--ambient-caps", &set])
        .arg(program);
    command
}

/// With the user and the capabilities of the unit, each source has the same status as for root.
#[test]
fn capabilities_of_the_unit_suffice() {
    let unit = unit();
    let capabilities = value(&unit, "AmbientCapabilities");
    assert_eq!(capabilities, value(&unit, "CapabilityBoundingSet"));
    let mut words = value(&unit, "ExecStart").split_whitespace();
    assert_eq!(words.next(), Some("/usr/local/bin/profiler"));
    assert_eq!(words.next(), Some("run"));
    let mut given: Vec<&str> = words.collect();
    // The output directory is the state directory, which systemd creates.
    assert_eq!(take(&mut given, "--out"), "/var/lib/profiler");
    assert_eq!(value(&unit, "StateDirectory"), "profiler");
    assert_eq!(take(&mut given, "--log"), "/var/log/profiler/profiler.log");
    assert_eq!(value(&unit, "LogsDirectory"), "profiler");
    assert_eq!(value(&unit, "RuntimeDirectory"), "profiler");

    let directory = tempfile::TempDir::new().expect("a directory");
    let binary = directory.path().join("profiler");
    std::fs::copy(setting("PROFILER_BIN"), &binary).expect("a copy");
    let out = directory.path().join("state");
    let log = directory.path().join("log");
    let runtime = directory.path().join("run");
    for path in [&out, &log, &runtime] {
        std::fs::create_dir(path).expect("a directory");
        std::os::unix::fs::chown(path, Some(USER), Some(USER)).expect("ours to give");
    }
    std::fs::set_permissions(
        directory.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .expect("open to all");
    let output = with_capabilities(&binary, capabilities)
        .arg("run")
        .env("RUNTIME_DIRECTORY", &runtime)
        .args(&given)
        .args(["-d", "1500ms", "--run-id", "node", "--out"])
        .arg(&out)
        .arg("--log")
        .arg(log.join("profiler.log"))
        .output()
        .expect("setpriv of util-linux");
    let text: String = std::fs::read_dir(&log)
        .expect("a directory")
        .map(|file| std::fs::read_to_string(file.expect("a file").path()).expect("text"))
        .collect();
    assert!(output.status.success(), "{text}{output:?}");
    assert!(
        output.stdout.is_empty() && output.stderr.is_empty(),
        "{output:?}"
    );
    assert!(text.contains("profiling node"), "{text}");
    // Runs of this machine's batch jobs may be in the same directory.
    let run = out.join("node");
    assert_eq!(run.metadata().expect("there").uid(), USER);
    let data = Dataset::new(run);
    data.assert_complete();
    let root = directory.path().join("root");
    let by_root = Profiler::writing_to(&root)
        .args(&given)
        .args(["-d", "300ms", "--run-id", "node"])
        .finish();
    assert_eq!(by_root.code(), 0, "{}", by_root.stderr);
    assert_eq!(
        sources(&data),
        sources(&Dataset::new(root.join("node"))),
        "{text}"
    );
    // Processes of other users are recorded with values that require privileges.
    let (others, named): (u64, u64) =
        data.row("SELECT count(*), count(exe) FROM process WHERE uid = 0 AND cmdline IS NOT NULL");
    assert!(others > 1 && named * 10 > others * 9, "{named} of {others}");
}
