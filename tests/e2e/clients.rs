//! The clients for C and for shells, in `clients/`. That for Rust has its own tests, and that for MPI
//! is tested in `jobs`.

use std::{
    ffi::OsStr,
    io::Write as _,
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use e2e::{
    dataset::Dataset,
    procfs,
    runs::{Finished, Profiler, wait_until},
    setting,
};
use serde_json::Value;
use tempfile::TempDir;

pub const CLIENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../clients");

/// Compiles a program without warnings.
pub fn compile<S: AsRef<OsStr>>(compiler: &str, options: &[&str], source: &str, program: S) {
    let output = Command::new(compiler)
        .args(["-O2", "-Wall", "-Wextra"])
        .args(options)
        .arg(format!("{CLIENTS}/{source}"))
        .arg("-o")
        .arg(program.as_ref())
        .output()
        .unwrap_or_else(|error| panic!("{compiler}: {error}"));
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && printed.is_empty(),
        "{source}: {printed}"
    );
}

fn test_program(directory: &TempDir) -> PathBuf {
    let program = directory.path().join("program");
    let options = ["-std=c99", "-pedantic", "-Wconversion", "-pthread"];
    compile("cc", &options, "c/test.c", &program);
    program
}

fn run(command: &[&str]) -> Finished {
    let bin = PathBuf::from(setting("PROFILER_BIN"));
    let bin = bin.parent().expect("a directory").display();
    Profiler::realtime()
        .env("PATH", format!("{bin}:{}", setting("PATH")))
        .command(command)
        .finish()
}

/// Name, op, status, attributes and number of the rows of `region`.
type Row = (String, String, Option<String>, Option<String>, u64);

fn regions(data: &Dataset) -> Vec<Row> {
    data.assert_complete();
    data.rows(
        "SELECT name, op, status, attributes, count(*) FROM region GROUP BY ALL ORDER BY min(region_id)",
    )
}

fn row(name: &str, op: &str, status: Option<&str>, attributes: Option<&str>, count: u64) -> Row {
    let [status, attributes] = [status, attributes].map(|text| text.map(str::to_owned));
    (name.to_owned(), op.to_owned(), status, attributes, count)
}

/// Name, value and unit.
fn gauges(data: &Dataset) -> Vec<(String, f64, Option<String>)> {
    data.rows("SELECT name, value, unit FROM region_gauge ORDER BY ts, name")
}

#[test]
fn c_marks_are_recorded() {
    let directory = TempDir::new().expect("a directory");
    let program = test_program(&directory);
    let run = run(&[program.to_str().expect("UTF-8"), "marks"]);
    let data = run.dataset();
    let attributes =
        r#"{"epoch":-3,"file \"x\"":"a\\b\n\u0001","infinite":null,"rate":0.5,"shape":[2,3]}"#;
    let (region, finished) = ("region", Some("finished"));
    assert_eq!(
        regions(&data),
        [
            row("fit", region, finished, Some(attributes), 1),
            row("fit", region, Some("error"), None, 1),
            row("thread", region, finished, None, 200),
            row("a\"b\\c\td é😀 ??", "event", None, None, 1),
            row("xxxx", "event", None, None, 1),
            row(&"x".repeat(255), "event", None, None, 1),
            row("before", "phase", finished, None, 1),
            row("negative", "phase", finished, None, 1),
            row("parent", region, finished, None, 1),
            row("child", region, finished, None, 1),
        ]
    );
    let details: [String; 6] = data.row(
        "SELECT a.kind, a.\"group\", a.tags, a.used, b.generated, b.parent_region_id::VARCHAR \
         FROM region a, region b WHERE a.region_id = 1 AND b.region_id = 2",
    );
    let expected = [
        "epoch",
        "training",
        r#"["gpu"]"#,
        r#"["in"]"#,
        r#"["out"]"#,
        "1",
    ];
    assert_eq!(details, expected);
    let nested: u64 = data.value(
        "SELECT count(*) FROM region r JOIN region p ON p.region_id = r.parent_region_id \
         WHERE (r.name, p.name, p.status) = ('thread', 'fit', 'error') \
         OR (r.name, p.name) = ('child', 'parent') AND r.pid <> p.pid",
    );
    assert_eq!(nested, 201);
    assert_eq!(
        gauges(&data),
        [
            ("memory".to_owned(), 1.5e9, Some("bytes".to_owned())),
            ("ratio".to_owned(), -0.125, None),
        ]
    );
}

#[test]
fn c_reports_drops_once_and_not_in_a_child() {
    let directory = TempDir::new().expect("a directory");
    let program = test_program(&directory);
    let path = directory.path().join("socket");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    let mut child = Command::new(program)
        .arg("flood")
        .env("PROFILER_SOCKET", path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("it starts");
    let receive = || -> Value {
        let mut buffer = [0; 1024];
        let length = socket.recv(&mut buffer).expect("a mark");
        serde_json::from_slice(&buffer[..length]).expect("JSON")
    };
    let mut received = vec![receive()];
    // Then all have been sent, and most were dropped.
    wait_until("it reads stdin", || procfs::is_idle(child.id()));
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(b"end").expect("written");
    drop(stdin);
    while received.last().expect("one")["name"] != "last" {
        received.push(receive());
    }
    assert!(child.wait().expect("our child").success());
    let count = |name: &str| received.iter().filter(|mark| mark["name"] == name).count();
    let dropped = |mark: &Value| mark["dropped"].as_u64().unwrap_or(0);
    let sum: u64 = received.iter().map(dropped).sum();
    assert_eq!(count("flood") as u64 + sum, 1000);
    let of_child = received.iter().filter(|mark| mark["name"] == "child");
    assert_eq!(of_child.map(dropped).collect::<Vec<_>>(), [0]);
}

#[test]
fn cxx_regions_end_with_their_scopes() {
    let directory = TempDir::new().expect("a directory");
    let program = directory.path().join("program");
    let options = ["-std=c++11", "-pedantic", "-Wconversion"];
    compile("c++", &options, "c/test.cc", &program);
    let run = run(&[program.to_str().expect("UTF-8")]);
    let data = run.dataset();
    let rows: Vec<(String, String, Option<u64>)> =
        data.rows("SELECT name, status, parent_region_id FROM region ORDER BY region_id");
    let row = |name: &str, parent| (name.to_owned(), "finished".to_owned(), parent);
    assert_eq!(
        rows,
        [
            row("outer", None),
            row("inner", Some(1)),
            row("again", None)
        ]
    );
}

#[test]
fn c_program_runs_without_a_profiler() {
    let directory = TempDir::new().expect("a directory");
    let program = test_program(&directory);
    for path in [
        None,
        Some("/no/such/socket"),
        Some(""),
        Some(&*"x".repeat(200)),
    ] {
        let mut command = Command::new(&program);
        command
            .env_remove("PROFILER_SOCKET")
            .envs(path.map(|path| ("PROFILER_SOCKET", path)));
        assert!(command.status().expect("it starts").success(), "{path:?}");
    }
}

#[test]
fn shell_functions_mark_and_keep_exit_statuses() {
    let script = format!("{CLIENTS}/bash/test.sh");
    for shell in ["bash", "sh"] {
        let finished = run(&[shell, &script]);
        assert_eq!(finished.stdout, "done\n", "{shell}: {}", finished.stderr);
        let data = finished.dataset();
        let (region, finished) = ("region", Some("finished"));
        let failed = |name, status: &str| row(name, region, Some("error"), Some(status), 1);
        assert_eq!(
            regions(&data),
            [
                row("program", region, finished, None, 1),
                failed("failing", r#"{"exit_status":3}"#),
                failed("missing", r#"{"exit_status":127}"#),
                failed("killed", r#"{"exit_status":143}"#),
                row("function", region, finished, None, 1),
                row("outer", region, finished, None, 1),
                row("inner", region, finished, None, 1),
                row("output", region, finished, None, 1),
                row("strict", region, Some("unfinished"), None, 1),
                row("-x", region, finished, None, 1),
                row("lenient", region, finished, None, 1),
                row("parallel", region, finished, None, 2),
                row("load", region, Some("partial"), Some(r#"{"n":1}"#), 1),
                row("checkpoint", "event", None, None, 1),
                row("compile", "phase", finished, None, 1),
            ],
            "{shell}"
        );
        assert_eq!(
            gauges(&data),
            [
                ("peak".to_owned(), 17.0, Some("bytes".to_owned())),
                ("low".to_owned(), -3.5, None),
            ]
        );
        let alone = Command::new(shell)
            .arg(&script)
            .env_remove("PROFILER_SOCKET")
            .output()
            .expect("a shell");
        assert!(
            Path::new(&script).exists() && alone.stdout == b"done\n",
            "{alone:?}"
        );
    }
}
