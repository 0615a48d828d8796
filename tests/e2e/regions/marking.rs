//! `profiler mark`.

use std::process::{Command, Output};

use e2e::{runs::Profiler, setting};

use super::counted;

fn mark(args: &[&str]) -> Output {
    Command::new(setting("PROFILER_BIN"))
        .arg("mark")
        .args(args)
        .env_remove("PROFILER_SOCKET")
        .output()
        .expect("the profiler starts")
}

/// Name, op, pid, parent, status, attributes, tags.
type Row = (
    String,
    String,
    u32,
    Option<u64>,
    Option<String>,
    Option<String>,
    Option<String>,
);

#[test]
fn script_marks_its_own_regions() {
    let bin = setting("PROFILER_BIN");
    let script = format!(
        r#"
mark() {{ {bin} mark "$@"; }}
mark start outer --id o --attr n=1 --attr text=hello --tag a --tag b --group g --kind k --used in
mark start inner --parent o
# Longer than the time between two readings.
sleep 0.5
head -c 3000000 /dev/zero > /dev/null
mark end inner --status error --generated out
mark event now --parent o
mark phase before 1.5
mark gauge temperature -3.5
mark gauge peak 17 --unit bytes
mark end --id o
mark end
echo $$
"#
    );
    let finished = Profiler::realtime()
        .command(&["sh", "-c", &script])
        .finish();
    let data = finished.dataset();
    data.assert_complete();
    assert_eq!(counted(&data, "refused"), 0, "{}", finished.stderr);
    assert_eq!(counted(&data, "end_without_start"), 1);
    let shell: u32 = finished.stdout.trim().parse().expect("a pid");
    let rows: Vec<Row> = data.rows(
        "SELECT coalesce(name, '-'), op, pid, parent_region_id, status, attributes, tags FROM region ORDER BY region_id",
    );
    let row = |name: &str, op: &str, parent, status: Option<&str>| {
        (
            name.to_owned(),
            op.to_owned(),
            shell,
            parent,
            status.map(str::to_owned),
            None,
            None,
        )
    };
    let mut outer = row("outer", "region", None, Some("finished"));
    outer.5 = Some(r#"{"n":1,"text":"hello"}"#.to_owned());
    outer.6 = Some(r#"["a","b"]"#.to_owned());
    assert_eq!(
        rows,
        [
            outer,
            row("inner", "region", Some(1), Some("error")),
            row("now", "event", Some(1), None),
            row("before", "phase", None, Some("finished")),
            row("-", "region", None, Some("unmatched")),
        ]
    );
    // Processes that the shell started meanwhile are included.
    let written: u64 = data.value("SELECT write_chars FROM region_usage WHERE name = 'inner'");
    assert!((3_000_000..3_100_000).contains(&written), "{written}");
    let gauges: Vec<(String, f64, Option<String>)> =
        data.rows("SELECT name, value, unit FROM region_gauge ORDER BY ts");
    assert_eq!(
        gauges,
        [
            ("temperature".into(), -3.5, None),
            ("peak".into(), 17.0, Some("bytes".into()))
        ]
    );
}

#[test]
fn mark_without_a_profiler_succeeds_with_a_note() {
    for (args, code, what) in [
        (&["start", "x"][..], 0, "PROFILER_SOCKET is not set"),
        (&["start", "x", "--strict"], 3, "PROFILER_SOCKET is not set"),
        (
            &["end", "--socket", "/no/such/socket"],
            0,
            "the profiler has ended",
        ),
        (
            &["end", "--socket", "/no/such/socket", "--strict"],
            3,
            "the profiler has ended",
        ),
        (&["phase", "x", "soon"], 2, "soon"),
        (&["start"], 2, "NAME"),
    ] {
        let output = mark(args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(what), "{args:?}: {stderr}");
        assert!(code == 2 || stderr.lines().count() == 1, "{stderr}");
        assert!(output.stdout.is_empty());
    }
    let large = "x".repeat(9000);
    let output = mark(&["event", "x", "--attr", &format!("a={large}")]);
    assert_eq!(output.status.code(), Some(2));
}

/// bash executes the last command of a script in its own process.
#[test]
fn last_command_of_a_shell_ends_its_region() {
    let script = "\"$0\" mark start last; sleep 0.05; \"$0\" mark end last";
    let in_a_shell = format!("bash -c '{script}' \"$0\"; true");
    for script in [script, &in_a_shell] {
        let finished = Profiler::new()
            .command(&["bash", "-c", script, &setting("PROFILER_BIN")])
            .finish();
        let data = finished.dataset();
        data.assert_complete();
        let regions: Vec<(String, String, u64)> = data.rows(
            "SELECT p.comm, r.status, count(*) FROM region r JOIN process p USING (pid, start_ts) \
             GROUP BY ALL",
        );
        assert_eq!(
            regions,
            [("profiler".into(), "finished".into(), 1)],
            "{}",
            finished.stderr
        );
    }
}
