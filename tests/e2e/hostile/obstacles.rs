//! Pipes, directories, links, sockets and devices at the names of the files of a run: every command ends,
//! follows no link, and stores or reports all rows.

use std::{
    fs,
    os::unix::{fs::symlink, net::UnixListener},
    path::{Path, PathBuf},
    process::Command,
};

use e2e::{
    dataset::Dataset,
    runs::{ProcessGroup, Profiler, Running},
    setting,
};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use tempfile::TempDir;

use crate::report::record;

/// What another user, or an accident, can put at the name of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Pipe,
    Directory,
    Link,
    Socket,
    Device,
}

const KINDS: [Kind; 5] = [
    Kind::Pipe,
    Kind::Directory,
    Kind::Link,
    Kind::Socket,
    Kind::Device,
];

/// Content of the file that the links name, and of the one in the directories.
const CONTENT: &str = "of another user";

impl Kind {
    /// Puts it at a path, in place of what is there.
    fn put_at(self, path: &Path, elsewhere: &Path) {
        fs::create_dir_all(path.parent().expect("a directory")).expect("directories");
        match path.symlink_metadata() {
            Ok(found) if found.is_dir() => fs::remove_dir_all(path).expect("removed"),
            Ok(_) => fs::remove_file(path).expect("removed"),
            Err(_) => {}
        }
        let node = |kind, device| {
            mknodat(CWD, path, kind, Mode::from_raw_mode(0o666), device).expect("a file");
        };
        match self {
            Self::Pipe => node(FileType::Fifo, 0),
            // As /dev/zero: a reader of everything would not end.
            Self::Device => node(FileType::CharacterDevice, makedev(1, 5)),
            Self::Link => symlink(elsewhere, path).expect("a link"),
            Self::Socket => drop(UnixListener::bind(path).expect("a socket")),
            Self::Directory => {
                fs::create_dir(path).expect("a directory");
                fs::write(path.join("kept"), CONTENT).expect("written");
            }
        }
    }

    /// What the commands say about it.
    fn refusal(self) -> &'static str {
        match self {
            Self::Link => "a link",
            _ => "not a regular file",
        }
    }
}

/// An output directory, and a file elsewhere, to which the links lead.
struct Runs {
    directory: TempDir,
    elsewhere: PathBuf,
}

impl Runs {
    fn new() -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let elsewhere = directory.path().join("elsewhere");
        fs::write(&elsewhere, CONTENT).expect("written");
        Self {
            directory,
            elsewhere,
        }
    }

    fn out(&self) -> PathBuf {
        self.directory.path().join("out")
    }

    fn run(&self) -> PathBuf {
        self.out().join("run")
    }

    fn put(&self, kind: Kind, name: &str) {
        kind.put_at(&self.run().join(name), &self.elsewhere);
    }

    /// Nothing was written through a link, and no directory of others was removed.
    #[track_caller]
    fn assert_nothing_lost(&self, kind: Kind, what: &str) {
        let content = fs::read_to_string(&self.elsewhere).expect("still there");
        assert_eq!(content, CONTENT, "{what}");
        if kind == Kind::Directory {
            let files = Dataset::new(self.out()).files();
            let mut kept = files.iter().filter(|file| file.ends_with("kept"));
            let kept = kept.next().unwrap_or_else(|| panic!("{what}: {files:?}"));
            assert_eq!(fs::read_to_string(kept).expect("text"), CONTENT, "{what}");
        }
    }
}

fn hostname() -> String {
    let node = rustix::system::uname();
    node.nodename().to_str().expect("text").to_owned()
}

struct Ended {
    code: i32,
    output: String,
}

/// Runs a command to its end. RUN is the run, RUNS its directory.
fn end(words: &[&str], run: &Path) -> Ended {
    let words = words.iter().map(|word| match *word {
        "RUN" => run,
        "RUNS" => run.parent().expect("a directory"),
        word => Path::new(word),
    });
    let output = Command::new("timeout")
        .args(["--kill-after=1", "300"])
        .arg(setting("PROFILER_BIN"))
        .args(words)
        .output()
        .expect("it starts");
    let texts = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    Ended {
        code: output.status.code().expect("no signal"),
        output: texts.concat(),
    }
}

/// What is there before the run gets another name or stays, and all rows are stored.
#[test]
fn runs_are_complete_whatever_has_the_names_of_their_files() {
    let host = hostname();
    // The problem that `verify` reports, if the name is kept.
    let names = [
        ("views.sql".to_owned(), false),
        (format!(".views.sql.{host}.tmp"), false),
        ("run.json".to_owned(), false),
        (format!(".run.json.{host}.tmp"), false),
        (format!("run.{host}.json"), true),
        ("compacted.json".to_owned(), true),
        ("system".to_owned(), false),
        (format!("system/host={host}"), false),
        (format!("system/host={host}/_part-00000.arrows"), true),
        (format!("system/host={host}/part-00000.parquet"), true),
        (format!("system/host={host}/.part-00000.parquet.tmp"), false),
        (format!("run/host={host}/part-00000.parquet"), false),
        (
            format!("run/host={host}/.part-00000.parquet.{host}.tmp"),
            false,
        ),
        ("../README.md".to_owned(), false),
        ("../schema.json".to_owned(), false),
        ("../compacted".to_owned(), false),
    ];
    for (name, is_problem) in &names {
        for kind in KINDS {
            let what = format!("{kind:?} at {name}");
            let runs = Runs::new();
            runs.put(kind, name);
            fs::create_dir_all(runs.run()).expect("a directory");
            let finished = Profiler::writing_to(&runs.out())
                .args(["--run-id", "run", "--source", "system,process"])
                .command(&["true"])
                .finish();
            assert_eq!(finished.code(), 0, "{what}: {}", finished.stderr);
            let reported = finished.stderr.contains("profiler: output: ");
            assert_eq!(reported, name == "compacted.json", "{}", finished.stderr);
            let verified = end(&["verify", "RUN"], &runs.run());
            let problem = format!("problem: {name}: {}", kind.refusal());
            let says = verified.output.contains(&problem);
            assert_eq!(says, *is_problem, "{what}: {}", verified.output);
            let problems = verified.output.matches("problem: ").count();
            assert_eq!(problems, usize::from(*is_problem), "{}", verified.output);
            assert_eq!(verified.code, if *is_problem { 7 } else { 0 }, "{what}");
            let mut lines = verified.output.lines();
            let system = lines.find(|line| line.starts_with("  system: "));
            let is_stored = system.is_some_and(|line| line.contains(" in 1 part, "));
            assert!(is_stored, "{what}: {}", verified.output);
            runs.assert_nothing_lost(kind, &what);
        }
    }
}

/// A command, its exit code, and whether it names what it cannot read.
type Expected<'a> = &'a [(&'a str, i32)];

/// The commands for finished runs.
const COMMANDS: [&[&str]; 7] = [
    &["verify", "RUN"],
    &["summary", "RUN"],
    &["report", "-o", "-", "RUN"],
    &["compare", "RUN", "--", "RUN"],
    &["export", "csv", "--table", "system", "-o", "-", "RUN"],
    &["recover", "RUN"],
    &["compact", "RUNS"],
];

/// In place of each file of a finished run: the commands end, and those that need the file name it.
#[test]
fn commands_end_whatever_has_the_names_of_the_files() {
    let host = hostname();
    let names: [(String, Expected<'_>); 12] = [
        ("views.sql".to_owned(), &[]),
        (format!(".views.sql.{host}.tmp"), &[]),
        (".views.sql.compact.tmp".to_owned(), &[]),
        (".compacted.json.compact.tmp".to_owned(), &[]),
        (
            "run.json".to_owned(),
            &[("verify", 7), ("summary", 0), ("report", 0), ("compare", 0)],
        ),
        (
            "compacted.json".to_owned(),
            &[
                ("verify", 7),
                ("summary", 0),
                ("report", 0),
                ("compare", 0),
                ("export", 5),
                ("recover", 5),
                ("compact", 0),
            ],
        ),
        (
            format!("system/host={host}/_part-00000.arrows"),
            &[("recover", 5)],
        ),
        (
            format!("system/host={host}/part-00000.parquet"),
            &[
                ("verify", 7),
                ("summary", 0),
                ("report", 0),
                ("compare", 0),
                ("export", 5),
                ("compact", 5),
            ],
        ),
        (
            format!("run/host={host}/part-00000.parquet"),
            &[("verify", 7)],
        ),
        ("../compacted/.lock".to_owned(), &[("compact", 5)]),
        ("../compacted/commit.json".to_owned(), &[("compact", 5)]),
        ("../README.md".to_owned(), &[]),
    ];
    let recorded = TempDir::new().expect("a directory");
    record(
        recorded.path(),
        &["--source", "system,process"],
        "sleep 0.3",
    );
    for (name, expected) in &names {
        for kind in KINDS {
            for words in COMMANDS {
                let what = format!("{words:?}: {kind:?} at {name}");
                let runs = Runs::new();
                let copied = Command::new("cp")
                    .arg("-a")
                    .args([recorded.path(), &runs.out()])
                    .status();
                assert!(copied.expect("cp starts").success());
                runs.put(kind, name);
                let ended = end(words, &runs.run());
                let code = expected
                    .iter()
                    .find_map(|(command, code)| (*command == words[0]).then_some(*code));
                assert_eq!(ended.code, code.unwrap_or(0), "{what}: {}", ended.output);
                let file = name.rsplit('/').next().expect("a name");
                let is_named = ended
                    .output
                    .contains(&format!("{file}: {}", kind.refusal()))
                    || ended.output.contains(&format!("{file}: Is a directory"));
                assert_eq!(is_named, code.is_some(), "{what}: {}", ended.output);
                runs.assert_nothing_lost(kind, &what);
            }
        }
    }
}

/// Puts something at the names of the next files of a profiler that is running. Returns its run.
fn obstructed(runs: &Runs, kind: Kind, pid: u32) -> Running {
    let host = hostname();
    let running = Profiler::writing_to(&runs.out())
        .args(["--run-id", "run", "-i", "50ms", "--source", "system"])
        .pid(pid)
        .start();
    Dataset::new(running.run_dir()).wait_for_samples("system", 5);
    for name in [
        "views.sql".to_owned(),
        format!(".run.json.{host}.tmp"),
        format!("system/host={host}/part-00000.parquet"),
        format!("system/host={host}/.part-00000.parquet.tmp"),
    ] {
        runs.put(kind, &name);
    }
    running
}

#[track_caller]
fn assert_stored(runs: &Runs, kind: Kind, state: &str) {
    let run = runs.run();
    let verified = end(&["verify", "RUN"], &run);
    // A killed profiler has not counted the samples that it missed.
    let of_the_kill = [" was killed: ", " samples are neither there nor counted "];
    let mut lines = verified.output.lines();
    let is_unexpected = |line: &&str| {
        line.contains("problem: ") && !of_the_kill.iter().any(|why| line.contains(why))
    };
    assert_eq!(lines.find(is_unexpected), None, "{kind:?}");
    let dataset = Dataset::new(run.clone());
    assert_eq!(dataset.manifest()["state"], state, "{kind:?}");
    let rows: u64 = dataset.value("SELECT count(*) FROM system");
    assert!(rows >= 5, "{kind:?}: {rows}");
    let views = fs::read_to_string(run.join("views.sql")).expect("a file");
    assert!(views.contains("VIEW \"system\""), "{kind:?}: {views}");
    runs.assert_nothing_lost(kind, "run");
}

/// The rows of a journal are stored, although its Parquet file seems to be there.
#[test]
fn rows_are_stored_whatever_takes_the_name_of_their_file() {
    let target = ProcessGroup::spawn(&["sleep", "600"]);
    for kind in KINDS {
        let runs = Runs::new();
        let finished = obstructed(&runs, kind, target.pid()).interrupt();
        assert_eq!(finished.code(), 0, "{kind:?}: {}", finished.stderr);
        assert_stored(&runs, kind, "complete");
    }
}

#[test]
fn rows_are_recovered_whatever_takes_the_name_of_their_file() {
    let target = ProcessGroup::spawn(&["sleep", "600"]);
    for kind in KINDS {
        let runs = Runs::new();
        obstructed(&runs, kind, target.pid()).kill();
        let recovered = end(&["recover", "RUN"], &runs.run());
        assert_eq!(recovered.code, 0, "{kind:?}: {}", recovered.output);
        assert_stored(&runs, kind, "recovered");
    }
}
