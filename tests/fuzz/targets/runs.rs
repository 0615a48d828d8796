//! A stored run, as read by the reports, the summary, comparisons and the exports.

#![no_main]

use std::{
    cell::RefCell,
    fs::{self, File},
    path::Path,
    time::Duration,
};

use arrow::ipc::reader::FileReader;
use fuzz::{panics, stored::Directory};
use libfuzzer_sys::fuzz_target;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use profiler::{
    analysis::{
        compare::{self, Measured, compare},
        roofline::Sources,
        stored_run::StoredRun,
        summary::{self, Summary, Thresholds, summarize},
    },
    charts::{Layout, file},
    export::{
        Selection, chrome_trace,
        files::{Destination, Files},
        flowcept, perfmon, perfpy, prov, pytyche,
        selection::Moment,
        series::Series,
        tables,
    },
    failure::Failure,
    output::dataset::foreign_file::Trust,
    run_report::{self, Report, Shown},
    sources::dataset_schema,
    support::log,
};
use serde_json::Value;

thread_local! {
    static RUN: RefCell<Directory> = RefCell::new(Directory::new("runs"));
}

fuzz_target!(init: panics::install_hook(), |data: &[u8]| {
    RUN.with(|run| panics::guarded(|| check(&mut run.borrow_mut(), data)));
});

/// What is made of the run, from the first bytes of an input.
struct Options {
    outputs: u8,
    trust: Trust,
    selection: Selection,
    every: Option<Duration>,
    /// Part of the run that is compared with it.
    between: (i64, i64),
}

impl Options {
    fn new(&[outputs, select, every, between]: &[u8; 4]) -> Self {
        let moments = [
            None,
            Some(Moment::Since(0)),
            Some(Moment::Since(1_500_000)),
            Some(Moment::Since(i64::MAX)),
            Some(Moment::At(i64::MIN)),
            Some(Moment::At(i64::MAX)),
            None,
            None,
        ];
        let moment = |shift: u32| moments[usize::from((select >> shift) & 7)];
        let durations = [
            None,
            Some(Duration::from_micros(1)),
            Some(Duration::from_millis(1500)),
            Some(Duration::MAX),
        ];
        let edges = [i64::MIN, 0, fuzz::stored::START, i64::MAX];
        Self {
            outputs,
            trust: if every & 4 == 0 {
                Trust::Own
            } else {
                Trust::Nobody
            },
            selection: Selection {
                from: moment(0),
                to: moment(3),
                region: (select & 64 != 0).then(|| "a".to_owned()),
                job: (select & 128 != 0).then(|| "a".to_owned()),
            },
            every: durations[usize::from(every & 3)],
            between: (
                edges[usize::from(between & 3)],
                edges[usize::from((between >> 2) & 3)],
            ),
        }
    }

    fn has(&self, output: u8) -> bool {
        (self.outputs >> output) & 1 != 0
    }
}

fn check(directory: &mut Directory, data: &[u8]) {
    let Some((options, edits)) = data.split_first_chunk() else {
        return;
    };
    let options = Options::new(options);
    directory.write(edits);
    let before = directory.files();
    match StoredRun::open(&directory.run(), options.trust) {
        Ok(run) => check_run(directory, &run, &options),
        Err(error) => is_line(&error.to_string()),
    }
    assert!(directory.files() == before, "a file of the run has changed");
}

fn check_run(directory: &Directory, run: &StoredRun, options: &Options) {
    // Only decoders can panic, and these are caught.
    for host in run.hosts.iter() {
        for table in dataset_schema().tables() {
            let columns: Vec<_> = table.columns().map(|column| column.name).collect();
            let read = run.read(table.name, host, &columns, |_| {});
            read.err().iter().flatten().for_each(|why| is_line(why));
        }
    }
    let is_decodable = panics::count() == 0;
    for what in 0..8 {
        if options.has(what) {
            match what {
                0 => summarized(run),
                1 => reported(run, options.trust == Trust::Own),
                2 => like_perfmon(run),
                3 => compared(run, options),
                4 => tables_of(run, options, directory),
                _ => exported(run, options, directory, what),
            }
        }
    }
    assert!(
        !is_decodable || panics::count() == 0,
        "a panic is no damage"
    );
}

fn is_line(text: &str) {
    assert!(text.lines().count() <= 1, "{text:?}");
}

/// A text in which nothing but lines changes the display.
fn is_harmless(text: &str) {
    let shown = log::lines(text);
    if shown != text {
        let place = shown.bytes().zip(text.bytes()).position(|(a, b)| a != b);
        let start = text.floor_char_boundary(place.unwrap_or(0).saturating_sub(60));
        panic!(
            "harmful: {:?}",
            text[start..].chars().take(120).collect::<String>()
        );
    }
}

fn is_json(document: &Value) {
    let text = log::json(&serde_json::to_string_pretty(document).unwrap());
    is_harmless(&text);
    serde_json::from_str::<Value>(&text).unwrap();
}

fn is_html(text: &str) {
    is_harmless(text);
    assert!(text.starts_with("<!DOCTYPE html>\n") && text.ends_with("</body></html>\n"));
    for element in [
        "html", "body", "main", "style", "footer", "article", "table", "svg", "figure",
    ] {
        let opened = text.matches(&format!("<{element}>")).count()
            + text.matches(&format!("<{element} ")).count();
        assert_eq!(
            opened,
            text.matches(&format!("</{element}>")).count(),
            "{element}"
        );
    }
}

fn thresholds() -> Thresholds {
    Thresholds {
        cpu_percent: Some(0.0),
        memory_bytes: Some(0.0),
        disk_bytes: Some(0.0),
        cpu_seconds: Some(0.0),
    }
}

fn summarized(run: &StoredRun) {
    let summaries = [summarize(run, &thresholds())];
    let pages = summaries.iter().map(summary::page);
    let keys = summary::keys(&summaries);
    let by_label = keys.iter().map(|key| summary::by_label(&summaries, key));
    for page in pages.chain(by_label) {
        is_harmless(&page.text());
        is_harmless(&page.markdown());
    }
    is_json(&summary::document(&summaries[0]));
    for key in keys {
        is_json(&summary::by_label_document(&summaries, key));
    }
}

fn reported(run: &StoredRun, redact: bool) {
    let sources = Sources::default();
    let reports = [Report::new(run, &thresholds(), &sources, redact)];
    is_html(&run_report::html(&reports));
    is_harmless(&run_report::markdown(&reports, &[Vec::new()]));
    for picture in reports[0].pictures() {
        let svg = file::svg(
            &*picture.chart,
            &picture.title,
            &reports[0].frame,
            &appearance(),
        );
        is_harmless(&svg);
        assert!(svg.ends_with("</svg>\n"));
    }
}

fn like_perfmon(run: &StoredRun) {
    let reports = [Report::like_perfmon(run, &thresholds(), true)];
    is_html(&run_report::perfmon_html(&reports, &appearance()));
}

fn appearance() -> file::Appearance {
    file::Appearance {
        layout: Layout::SCREEN,
        font: file::FONT.to_owned(),
        with_title: true,
    }
}

fn compared(run: &StoredRun, options: &Options) {
    let part = run.between(options.between.0, options.between.1);
    let runs = [run, &part];
    let summary = |run: &&StoredRun| summarize(run, &Thresholds::default());
    let summaries: Vec<Summary> = runs.iter().map(summary).collect();
    let measured = |side: usize| Measured::new(runs[side], summaries[side].clone());
    let [a, b] = [measured(0), measured(1)];
    let _ = Measured::median(&[measured(0), measured(1)]);
    for sides in [[&[&a][..], &[&b]], [&[&a, &b, &a, &a], &[&b, &a, &b, &b]]] {
        let comparison = compare(["a".to_owned(), "b".to_owned()], sides);
        let page = compare::page(&comparison);
        is_harmless(&page.text());
        is_harmless(&page.markdown());
        is_json(&compare::document(&comparison));
        let shown = [0, 1].map(|side| Shown::read(runs[side], &summaries[side]));
        is_html(&run_report::comparison(&comparison, &shown));
    }
}

/// Whether an export says in one line why there is none.
fn is_written<T>(result: Result<T, Failure>) -> bool {
    if let Err(failure) = &result {
        is_line(&failure.message);
    }
    result.is_ok()
}

fn tables_of(run: &StoredRun, options: &Options, directory: &Directory) {
    let runs = std::slice::from_ref(run);
    if !is_written(options.selection.check(runs)) {
        return;
    }
    for table in dataset_schema().tables() {
        if !run
            .hosts
            .iter()
            .any(|host| host.tables.contains(table.name))
        {
            continue;
        }
        for format in [
            tables::Format::SpreadsheetCsv,
            tables::Format::Json,
            tables::Format::Ndjson,
            tables::Format::Feather,
            tables::Format::Parquet,
        ] {
            let path = directory
                .output()
                .join(format!("table.{}", format.extension()));
            let mut output = File::create(&path).unwrap();
            let selection = &options.selection;
            if is_written(tables::write(runs, table, selection, format, &mut output)) {
                is_complete(&path);
            }
        }
    }
}

/// Reads a file of a known format.
fn is_complete(path: &Path) {
    let content = fs::read(path).unwrap();
    let json = |text: &[u8]| drop(serde_json::from_slice::<Value>(text).unwrap());
    match path.extension().and_then(|name| name.to_str()) {
        Some("json") => json(&content),
        Some("ndjson" | "jsonl") => {
            let lines = content.split_inclusive(|byte| *byte == b'\n');
            lines.for_each(json);
        }
        Some("feather") => {
            let batches = FileReader::try_new(File::open(path).unwrap(), None).unwrap();
            batches.for_each(|batch| drop(batch.unwrap()));
        }
        Some("parquet") => {
            let file = File::open(path).unwrap();
            let batches = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
            batches
                .build()
                .unwrap()
                .for_each(|batch| drop(batch.unwrap()));
        }
        _ => drop(String::from_utf8(content).unwrap()),
    }
}

fn exported(run: &StoredRun, options: &Options, directory: &Directory, what: u8) {
    let series = Series {
        run,
        selection: &options.selection,
        every: options.every,
    };
    if !is_written(options.selection.check(std::slice::from_ref(run))) {
        return;
    }
    let output = directory.output();
    let mut files = Files::new(true);
    let mut write = |name: &str, what: u8| {
        let destination = Destination::File(output.join(name));
        files.write(&destination, |file| match what {
            0 => chrome_trace::write(&series, file),
            1 => flowcept::write(&series, &output, file),
            2 => prov::write(&series, &output, file),
            _ => {
                let nodes = serde_json::to_vec(&perfpy::nodes(run)).unwrap();
                is_json(&serde_json::from_slice(&nodes).unwrap());
                perfpy::write(&series, file)
            }
        })
    };
    let results = match what {
        5 => vec![perfmon::write(&series, &mut files, &output.join("perfmon"))],
        6 => vec![write("trace.json", 0), write("perf.json", 3)],
        _ => vec![
            write("flowcept.jsonl", 1),
            write("prov.json", 2),
            pytyche::write(&series, &mut files, &output.join("pytyche")),
        ],
    };
    if results.into_iter().all(is_written) {
        let paths = files.commit().unwrap();
        paths.iter().for_each(|path| is_complete(path));
    }
}
