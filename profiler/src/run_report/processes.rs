//! Processes: where the time of their threads went, and when they lived.

use super::{
    over_time::{Life, OverTime},
    plots,
    section::{Part, Picture},
};
use crate::{
    analysis::{
        figure::Unit,
        summary::{Summary, process_subject},
    },
    charts::{
        Axis, Scale,
        bars::{self, Bars},
        lanes::{Bar, Lanes},
        lines::{Line, Plot},
    },
};

/// Where the time of the threads of a process can go: label, class of the colour, figure.
const THREAD_TIMES: [(&str, &str, &str); 5] = [
    ("user mode", "c0", "user_s"),
    ("kernel", "c1", "system_s"),
    ("run queue", "c2", "runqueue_s"),
    ("blocked", "c3", "blocked_s"),
    ("asleep", "asleep", "sleep_s"),
];

/// The time of all threads of each process with much CPU time.
pub fn process_times(summary: &Summary) -> Option<Part> {
    let known: Vec<_> = THREAD_TIMES
        .iter()
        .filter(|(_, _, figure)| summary.target.get(figure).is_some())
        .collect();
    let several = summary.nodes.len() > 1;
    let rows = summary.processes.iter().map(|top| {
        let process = &top.process;
        let name = if process.cmdline.is_empty() {
            &process.comm
        } else {
            &process.cmdline
        };
        let on = if several { &top.host } else { "" };
        let values = known.iter().map(|(_, _, figure)| top.figures.get(figure));
        bars::Row {
            label: format!("{on} {} {name}", process.key.0)
                .trim_start()
                .to_owned(),
            subject: Some(process_subject(&top.host, process.key)),
            values: values.map(Option::unwrap_or_default).collect(),
        }
    });
    let chart = Bars {
        scale: Scale {
            unit: Unit::Seconds,
            per_second: false,
        },
        rows: rows.collect(),
        parts: known
            .iter()
            .map(|(label, class, _)| (*label, *class))
            .collect(),
    };
    let sql = known.iter().filter_map(|(_, _, name)| plots::figure(name));
    let sql = sql.map(|figure| figure.sql(&["host", "pid", "start_ts"], &[]));
    (!chart.rows.is_empty()).then(|| {
        Part::Picture(Picture {
            sql: sql.collect(),
            ..Picture::new(
                "process-time",
                "Thread states by process (top by CPU)",
                chart,
            )
        })
    })
}

/// Processes with a lane of their own.
const LANES: usize = 40;

pub fn lives(over_time: &OverTime) -> Vec<Part> {
    let all: Vec<&Life> = over_time
        .hosts
        .iter()
        .flat_map(|host| &host.processes)
        .collect();
    if all.is_empty() {
        return Vec::new();
    }
    let span = over_time.span;
    let cpu = |life: &Life| life.cpu.unwrap_or(0);
    let length = |life: &Life| life.end.unwrap_or(span.end) - life.key.1.max(span.start);
    let mut shown = all.clone();
    shown.sort_by_key(|life| std::cmp::Reverse((cpu(life), length(life))));
    shown.truncate(LANES);
    shown.sort_by_key(|life| (life.key.1, life.key.0));
    let bars = shown.iter().enumerate().map(|(lane, life)| Bar {
        start: life.key.1,
        end: life.end.unwrap_or(span.end),
        label: shortened(&life.name),
        subject: Some(life.subject.clone()),
        // The colour of failures.
        colour: if life.failed { 5 } else { 0 },
        lane,
    });
    let title = "Process timeline (top by CPU; orange = failed)";
    let chart = Lanes(bars.collect());
    let mut parts = vec![Part::Picture(Picture::new("process-lives", title, chart))];
    if all.len() > shown.len() {
        parts.push(folded(&all, over_time));
    }
    parts
}

/// All processes as a rate of starts.
fn folded(all: &[&Life], over_time: &OverTime) -> Part {
    let span = over_time.span;
    let mut starts = vec![Some(0.0); span.intervals];
    for life in all.iter().filter(|life| life.key.1 >= span.start) {
        let position = span.position(life.key.1).floor();
        let index = (0..span.intervals).find(|index| *index as f64 >= position);
        if let Some(Some(count)) = index.and_then(|index| starts.get_mut(index)) {
            *count += 1.0 / span.step();
        }
    }
    let title = format!("Processes started per second, all {}", all.len());
    let chart = Plot {
        scale: Scale {
            unit: Unit::Count,
            per_second: true,
        },
        lines: vec![Line {
            label: "starts".to_owned(),
            means: starts,
            ..Line::default()
        }],
        stacked: false,
        limit: None,
        axis: Axis::Linear,
    };
    Part::Picture(Picture::new("process-starts", &title, chart))
}

/// The beginning of a long text.
pub fn shortened(text: &str) -> String {
    const LONGEST: usize = 70;
    if text.chars().count() <= LONGEST {
        return text.to_owned();
    }
    text.chars().take(LONGEST - 1).chain(['…']).collect()
}
