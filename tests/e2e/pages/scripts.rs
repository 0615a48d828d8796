//! The scripts and queries of the pages run, except for lines that need what this tier does not have.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use e2e::{
    page::{Page, root},
    runs::ProcessGroup,
    setting,
};
use tempfile::TempDir;

/// Texts of lines that do not run here, and why. Their options are compared with the program as all
/// others are.
const NOT_RUN: [(&str, &str); 18] = [
    ("cargo xtask", "builds"),
    (
        "s3://",
        "needs a server: export::, many_nodes:: and the tier python have one",
    ),
    ("https://", "needs a server"),
    ("mlflow", "needs a server"),
    ("pip install", "the tier python installs the package"),
    ("python -m", "the tier python runs the modules"),
    ("pytest", "the tier python has the plugin"),
    ("apt install", "the tier packages installs them"),
    ("dnf install", "the tier packages installs them"),
    ("sudo install", "changes the system"),
    ("systemctl", "the tier system has systemd"),
    ("podman", "installs an image"),
    ("oci-archive", "the second line of it"),
    ("setcap", "system::commands has file capabilities"),
    ("profiler serve", "does not end: service:: has services"),
    (
        "profiler ceilings",
        "takes a minute on an idle node: roofline:: has it",
    ),
    (
        "--groups",
        "needs these counters: the tier counters has them",
    ),
    ("--events '", "needs these counters"),
];

/// What a page assumes: programs, runs and files, by a script that makes them.
const ASSUMED: [(&str, &str); 9] = [
    (
        "docs/ci.md",
        "mkdir main change; cp solver main/bench; cp solver change/bench",
    ),
    (
        "docs/exports.md",
        "for run in old-1 old-2; do profiler run -q -o . --run-id $run -- ./solver; done
         for run in slurm-3072 new; do profiler run -q --run-id $run -- ./solver; done
         profiler run -q --run-id demo -- sh -c 'profiler mark start fit; profiler mark end fit'
         profiler export flowcept profiles/demo -o flowcept_buffer.jsonl
         profiler export perfpy profiles/demo -o perf.json",
    ),
    (
        "docs/files.md",
        "profiler run -q --run-id compacted-run -- ./solver; profiler compact profiles
         profiler run -q --run-id run -- ./solver",
    ),
    (
        "docs/readers.md",
        "profiler run -q -o . --run-id RUN -- ./solver",
    ),
    (
        "docs/operation.md",
        "profiler run -q -d 1h --pid TARGET > /dev/null 2>&1 & until \"$PROFILER_BIN\" status; do sleep 0.1; done",
    ),
    (
        "docs/compare.md",
        "for run in old-1 old-2 old-3 old-4 old-5 new-1 new-2 new-3 new-4 new-5; do
             profiler run -q -o . --run-id $run -- ./solver
         done",
    ),
    (
        "docs/reports.md",
        "profiler run -q -o . --run-id RUN -- ./solver",
    ),
    (
        "docs/summaries.md",
        "profiler run -q -o . --run-id RUN -- ./solver
         profiler run -q --run-id 20261129T025539Z-node1-28929 -- ./solver",
    ),
    (
        "docs/many-nodes.md",
        "profiler run -q --run-id slurm-4711 -- ./solver",
    ),
];

/// Programs of other software that a script starts, and this project's profiler.
const PROGRAMS: [(&str, &str); 6] = [
    (
        "profiler",
        "\"$PROFILER_BIN\" \"$@\"; code=$?; echo \"$code profiler $*\" | tr '\\n' ' ' >> \"$PAGE_LOG\"
         echo >> \"$PAGE_LOG\"; exit $code",
    ),
    // A launcher on one node: it skips its own options.
    (
        "srun",
        "while :; do case $1 in -x | --map-by) shift 2;; -*) shift;; *) exec \"$@\";; esac; done",
    ),
    ("mpirun", "exec srun \"$@\""),
    ("make", "exec ./solver"),
    // A path of keys, in each document. A key that does not exist is an error here.
    (
        "jq",
        "exec \"$PROFILER_TEST_PYTHON\" -c '
import json, sys
text, end = sys.stdin.read().strip(), 0
while end < len(text):
    value, end = json.JSONDecoder().raw_decode(text, end)
    end += text[end:].startswith(chr(10))
    for key in sys.argv[-1].removeprefix(\".\").split(\".\"):
        value = value[key]
    print(value)' \"$@\"",
    ),
    (
        "duckdb",
        "exec \"$PROFILER_TEST_PYTHON\" -c '
import sys, duckdb
duckdb.execute(open(sys.argv[2]).read())
for query in filter(str.strip, sys.stdin.read().split(\";\\n\")):
    print(duckdb.sql(query))' \"$@\"",
    ),
];

/// A directory in which the scripts of a page run.
struct Sandbox {
    directory: TempDir,
    log: PathBuf,
    /// A process to be profiled, of a batch job.
    target: ProcessGroup,
    /// The number of that job.
    job: String,
}

impl Sandbox {
    fn new() -> Self {
        let directory = TempDir::new().expect("a directory");
        let path = directory.path();
        let write = |path: PathBuf, text: &str| {
            fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
        };
        for name in ["bin", "logs", "shared/profiles/logs", "node"] {
            fs::create_dir_all(path.join(name)).expect("a directory");
        }
        for (name, text) in PROGRAMS {
            write(path.join("bin").join(name), text);
        }
        for name in ["solver", "first", "second", "matmul"] {
            write(path.join(name), "head -c 1000000 /dev/zero | sha256sum");
        }
        for name in ["docs", "clients"] {
            std::os::unix::fs::symlink(root().join(name), path.join(name)).expect("a link");
        }
        let job = format!("40{}", std::process::id());
        let mut sleep = Command::new("sleep");
        let target = ProcessGroup::start(sleep.arg("1000").env("SLURM_JOB_ID", &job));
        let log = path.join("log");
        Self {
            directory,
            log,
            target,
            job,
        }
    }

    /// A text of a page with what exists here.
    fn adapted(&self, text: &str) -> String {
        let path = self.directory.path().to_str().expect("UTF-8");
        let target = self.target.pid().to_string();
        let changes = [
            ("--pid 4711", format!("--pid {target}")),
            ("--pid PID", format!("--pid {target}")),
            ("COMMAND ARGS…", "./solver".to_owned()),
            ("TARGET", target.clone()),
            ("4711", self.job.clone()),
            ("/shared/profiles", format!("{path}/shared/profiles")),
            ("/var/lib/profiler", format!("{path}/node")),
            ("JOB_DIRECTORY", "job-3072".to_owned()),
            ("profiles/RUN", "profiles/run".to_owned()),
            ("-d 10m", "-d 300ms".to_owned()),
            ("-d 60s", "-d 300ms".to_owned()),
            ("sleep 20", "sleep 0.2".to_owned()),
            // A browser writes it, which the tier browser has.
            (" --pdf job-report.pdf", String::new()),
        ];
        let changed = changes
            .iter()
            .fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
        changed.replace("\\\n", " ")
    }

    /// Runs a script, and asserts that its commands succeed.
    fn run(&self, page: &str, script: &str) {
        fs::write(&self.log, "").expect("a log");
        let path = self.directory.path();
        let clients = root().join("clients/bash");
        let search = format!(
            "{}/bin:{}:{}",
            path.display(),
            clients.display(),
            setting("PATH")
        );
        let output = Command::new("bash")
            .args(["-eu", "-c", script])
            .current_dir(path)
            .env("PATH", search)
            .env("PAGE_LOG", &self.log)
            .env("PROFILER_DURATION", "300ms")
            .env("SLURM_JOB_ID", &self.job)
            .envs(["ACCOUNT", "PARTITION", "NAME"].map(|name| (format!("SLURM_JOB_{name}"), "x")))
            .output();
        let output = output.expect("a shell");
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        let log = fs::read_to_string(&self.log).expect("a log");
        let is_expected = |line: &str| {
            let (code, command) = line.split_once(' ').expect("a code");
            // Runs of the same program may differ significantly, by chance.
            code == "0" || command.contains("--fail-on") && ["8", "9"].contains(&code)
        };
        for line in log.lines() {
            assert!(is_expected(line), "{page}: {line}\n{script}\n{text}");
        }
        let judged = log.contains("--fail-on");
        assert!(
            output.status.success() || judged,
            "{page}:\n{script}\n{text}"
        );
    }
}

/// The lines of a script that run here.
fn lines(script: &str) -> String {
    let lines = script.replace("\\\n", " ");
    let runs = |line: &&str| !NOT_RUN.iter().any(|(text, _)| line.contains(text));
    lines.lines().filter(runs).collect::<Vec<_>>().join("\n")
}

/// Packages of Python that the tests of this tier do not have.
const OTHER_PACKAGES: [&str; 6] = [
    "polars",
    "pyspark",
    "dask",
    "datafusion",
    "flowcept",
    "read_hdf",
];

/// Runs the Python of a page in the directory of `profiles/run`.
pub fn check_python(path: &str) {
    let sandbox = Sandbox::new();
    sandbox.run(
        path,
        "profiler run -q --run-id run -- ./solver; cp -r profiles/run RUN",
    );
    run_python(&sandbox, &Page::read(path));
}

fn run_python(sandbox: &Sandbox, page: &Page) {
    let programs = page.programs("python").into_iter();
    let programs = programs.filter(|text| !OTHER_PACKAGES.iter().any(|name| text.contains(name)));
    // Together they are one program.
    let program = programs
        .collect::<Vec<_>>()
        .join("\n")
        .replace("profiles/…", "profiles/run");
    if !program.is_empty() {
        let script = format!("\"$PROFILER_TEST_PYTHON\" << 'END'\n{program}\nEND");
        sandbox.run(&page.path, &script);
    }
}

fn check(path: &str) {
    let page = Page::read(path);
    let sandbox = Sandbox::new();
    let run = |script: &str| sandbox.run(path, &sandbox.adapted(script));
    run("profiler run -q --run-id run -- ./solver");
    for (of, script) in ASSUMED {
        if of == path {
            run(script);
        }
    }
    for script in page.scripts() {
        let script = lines(&script);
        if script.contains("profiler") {
            run(&script);
        }
    }
    for query in page.programs("sql") {
        // Paths of runs, or the views of a run.
        let (directory, init) = if query.contains("'profiles/") || query.contains("'RUN/") {
            (".", "/dev/null")
        } else {
            ("profiles/run", "views.sql")
        };
        run(&format!(
            "cd {directory}; duckdb -init {init} << 'END'\n{query}\nEND"
        ));
    }
    run_python(&sandbox, &page);
}

/// A test for each page.
macro_rules! pages {
    ($($name:ident: $path:literal),* $(,)?) => {
        $(#[test] fn $name() { check($path); })*
        /// Pages with a test here.
        const TESTED: &[&str] = &[$($path),*];
    };
}

pages! {
    readme: "README.md",
    ci: "docs/ci.md",
    compare: "docs/compare.md",
    exports: "docs/exports.md",
    files: "docs/files.md",
    first_report: "docs/first-report.md",
    io: "docs/io.md",
    jobs: "docs/jobs.md",
    many_nodes: "docs/many-nodes.md",
    operation: "docs/operation.md",
    perfevents: "docs/perfevents.md",
    privileges: "docs/privileges.md",
    readers: "docs/readers.md",
    regions: "docs/regions.md",
    reports: "docs/reports.md",
    service: "docs/service.md",
    summaries: "docs/summaries.md",
    troubleshooting: "docs/troubleshooting.md",
}

#[test]
fn every_page_with_scripts_or_queries_is_tested() {
    for page in Page::all() {
        let scripts: String = page.scripts().iter().map(|script| lines(script)).collect();
        let has_some = scripts.contains("profiler ") || !page.programs("sql").is_empty();
        let is_tested = TESTED.contains(&&*page.path);
        let is_elsewhere =
            page.path == "docs/recipes.md" || page.path.starts_with("docs/coming-from");
        assert_eq!(has_some, is_tested || is_elsewhere, "{}", page.path);
    }
}

#[test]
fn reasons_not_to_run_a_line_are_used() {
    let scripts: String = Page::all().iter().flat_map(Page::scripts).collect();
    let unused: Vec<_> = NOT_RUN
        .iter()
        .filter(|(text, _)| !scripts.contains(text))
        .collect();
    assert!(unused.is_empty(), "{unused:?}");
    assert!(Path::new(&setting("PROFILER_BIN")).exists());
}
