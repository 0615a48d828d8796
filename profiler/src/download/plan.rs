//! The files of a run, from the list of the server or from the run's own files. All texts are of others.

use std::collections::BTreeSet;

use crate::{
    output::dataset::{
        compacted::{self, CompactedRun},
        files::{host_directory, host_of_directory, is_plain_name},
        manifest::{self, Manifest, saturating_sum},
        parquet_file,
    },
    schema::run::RUN,
};

/// Most files of a run.
const MAX_FILES: u64 = 100_000;

/// Files to copy.
#[derive(Debug, PartialEq, Eq)]
pub enum Files {
    /// One file: its path, below the directory of the runs.
    One(String),
    /// The Parquet files of a table and host.
    Parts {
        /// Their directory.
        directory: String,
        /// Number of files. Their numbers can have gaps.
        count: u64,
        /// Whether fewer can be right: their rows are compacted, or older versions do not have the table.
        can_be_fewer: bool,
    },
}

/// The files of a run, except for `run.json` and `compacted.json`, of a server that lists them. Other
/// files are left out.
pub fn listed(run: &str, paths: &BTreeSet<String>) -> Result<Vec<Files>, String> {
    let is_of_run = |path: &&String| match *path.split('/').collect::<Vec<_>>() {
        [name] => manifest::is_manifest(name) && is_plain_name(name) && name != manifest::FILE,
        [table, host, file] => {
            is_plain_name(table)
                && host_of_directory(host).is_some_and(is_plain_name)
                && parquet_file::number(file).is_some_and(|n| parquet_file::name(n) == file)
        }
        _ => false,
    };
    let files = paths.iter().filter(is_of_run);
    let files: Vec<_> = files
        .map(|path| Files::One(format!("{run}/{path}")))
        .collect();
    limited(files)
}

/// The files of a run as its `run.json` describes them: those of the host that has written it.
pub fn described(
    run: &str,
    manifest: &Manifest,
    compacted: Option<&CompactedRun>,
) -> Result<Vec<Files>, String> {
    let host = plain(&manifest.hostname, "host")?;
    let sessions = manifest.sessions();
    let mut tables: BTreeSet<&str> = sessions
        .flat_map(|session| session.tables.keys().map(String::as_str))
        .collect();
    // Each session has a row in it, which is not counted.
    tables.insert(RUN.name);
    let mut files = Vec::new();
    for table in tables {
        let of_session = |session: &Manifest| session.tables.get(table).map_or(0, |of| of.parts);
        let count = match table {
            table if table == RUN.name => manifest.sessions().count() as u64,
            _ => saturating_sum(manifest.sessions().map(of_session)),
        };
        let is_compacted = compacted.is_some_and(|compacted| compacted.of(table, host).is_some());
        let table = plain(table, "table")?;
        files.push(Files::Parts {
            directory: format!("{run}/{table}/{}", host_directory(host)),
            count,
            can_be_fewer: is_compacted || table == RUN.name,
        });
    }
    limited(files)
}

/// The compacted files with rows of a run.
pub fn of_compacted(compacted: &CompactedRun) -> Result<Vec<Files>, String> {
    let mut files = Vec::new();
    for table in compacted.tables.keys() {
        let directory = format!("{}/{}", compacted::DIRECTORY, plain(table, "table")?);
        for file in compacted.files_of(table) {
            compacted::day_and_name(file).map_err(|error| error.to_string())?;
            files.push(Files::One(format!("{directory}/{file}")));
        }
    }
    limited(files)
}

fn plain<'a>(name: &'a str, what: &str) -> Result<&'a str, String> {
    if is_plain_name(name) {
        Ok(name)
    } else {
        Err(format!("`{name}` is not the name of a {what}"))
    }
}

fn limited(files: Vec<Files>) -> Result<Vec<Files>, String> {
    let counts = files.iter().map(|files| match files {
        Files::One(_) => 1,
        Files::Parts { count, .. } => *count,
    });
    let count = saturating_sum(counts);
    if count > MAX_FILES {
        return Err(format!("{count} files, more than {MAX_FILES}"));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn described_by(manifest: Value) -> Result<Vec<Files>, String> {
        let manifest: Manifest = serde_json::from_value(manifest).unwrap();
        described("run", &manifest, None)
    }

    fn parts(directory: &str, count: u64, can_be_fewer: bool) -> Files {
        Files::Parts {
            directory: directory.to_owned(),
            count,
            can_be_fewer,
        }
    }

    #[test]
    fn sessions_are_added_up() {
        let files = described_by(json!({
            "hostname": "a",
            "tables": { "usage": { "parts": 2 } },
            "earlier": [{ "tables": { "usage": { "parts": 3 }, "net_io": { "parts": 1 } } }],
        }));
        let expected = [
            parts("run/net_io/host=a", 1, false),
            parts("run/run/host=a", 2, true),
            parts("run/usage/host=a", 5, false),
        ];
        assert_eq!(files.unwrap(), expected);
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for manifest in [
            json!({ "hostname": "../a" }),
            json!({ "hostname": "" }),
            json!({ "hostname": "a", "tables": { "/etc": { "parts": 1 } } }),
            json!({ "hostname": "a", "tables": { "..": { "parts": 1 } } }),
            json!({ "hostname": "a", "tables": { "usage": { "parts": u64::MAX } } }),
            json!({ "hostname": "a", "tables": { "usage": { "parts": 60_000 }, "cpu": { "parts": 60_000 } } }),
        ] {
            assert!(described_by(manifest.clone()).is_err(), "{manifest}");
        }
        for tables in [
            json!({ "../usage": { "a": { "files": ["day=2026-01-31/part-00000.parquet"] } } }),
            json!({ "usage": { "a": { "files": ["../day=2026-01-31/part-00000.parquet"] } } }),
        ] {
            let compacted = serde_json::from_value(json!({ "tables": tables })).unwrap();
            assert!(of_compacted(&compacted).is_err(), "{tables}");
        }
    }

    #[test]
    fn other_objects_are_left_out() {
        let paths = [
            "run.b.json",
            "usage/host=a/part-00000.parquet",
            "run.json",
            "compacted.json",
            "views.sql",
            "usage/host=a/_part-00001.arrows",
            "usage/host=a/part-0.parquet",
            "usage/host=../part-00000.parquet",
            "usage/host=/part-00000.parquet",
            "../host=a/part-00000.parquet",
            "/host=a/part-00000.parquet",
            "a/b/host=a/part-00000.parquet",
        ];
        let files = listed("run", &paths.map(str::to_owned).into()).unwrap();
        let expected = ["run/run.b.json", "run/usage/host=a/part-00000.parquet"];
        assert_eq!(files, expected.map(|path| Files::One(path.to_owned())));
    }
}
