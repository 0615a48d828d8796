//! Files beside the runs of a directory, which describe all of them: `schema.json` and `README.md`.
//!
//! Profilers of several nodes, users and versions share the directory, without locks: the files appear
//! by a rename, and those of the newest version stay. What another user or another program has written
//! is left alone.

mod readme;

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use serde::Deserialize;

use super::files::Directory;
use crate::schema::{DatasetSchema, Edition};

/// Name of the file with all columns.
pub const SCHEMA_FILE: &str = "schema.json";
/// Name of the introduction.
pub const README_FILE: &str = "README.md";

/// Size beyond which a file is of another program, in bytes.
const MAX_BYTES: u64 = 4 << 20;

/// The files in a directory that this program has written for this user or root.
pub fn files_in(out: &Directory) -> Vec<&'static str> {
    let editions: [(_, EditionOf); 2] = [
        (SCHEMA_FILE, edition_of_dictionary),
        (README_FILE, readme::edition),
    ];
    let is_written = |(name, edition_of): &(&str, EditionOf)| {
        text(out, name, |file| {
            Ok(out.is_own(file)? || out.trust().limits(file)?.is_none())
        })
        .is_some_and(|text| edition_of(&text).is_some())
    };
    let written = editions.into_iter().filter(is_written);
    written.map(|(name, _)| name).collect()
}

/// Whether one of the files can be at a path.
pub fn is_at(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str);
    name.is_some_and(|name| [SCHEMA_FILE, README_FILE].contains(&name)) && path.is_file()
}

/// Finds out which edition a content is; `None` if another program has written it.
type EditionOf = fn(&str) -> Option<Edition>;

/// Writes the files if they are missing or of an older version. Everyone may read them: they say
/// nothing about a run.
///
/// # Errors
///
/// When a file cannot be written.
pub fn write(out: Directory, hostname: &str, schema: &DatasetSchema) -> io::Result<()> {
    let out = out.readable_by_all();
    let writer = format!("{hostname}.{}", std::process::id());
    let edition = schema.edition();
    let dictionary = format!("{}\n", schema.to_json());
    let files: [(_, _, EditionOf); 2] = [
        (SCHEMA_FILE, dictionary, edition_of_dictionary),
        (README_FILE, readme::text(schema), readme::edition),
    ];
    for (name, content, edition_of) in files {
        if !out.has(name)? {
            match out.write_new_among(name, &writer, content.as_bytes()) {
                // Another node was faster.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                written => written?,
            }
        } else if text(&out, name, |file| out.is_own(file))
            .and_then(|text| edition_of(&text))
            .is_some_and(|found| found < edition)
        {
            out.replace(name, &writer, content.as_bytes())?;
        }
    }
    Ok(())
}

/// The content of a file, unless it is of another user.
fn text(out: &Directory, name: &str, is_own: impl Fn(&File) -> io::Result<bool>) -> Option<String> {
    let file = out.read(name).ok()?;
    if !is_own(&file).ok()? {
        return None;
    }
    let mut text = String::new();
    file.take(MAX_BYTES + 1).read_to_string(&mut text).ok()?;
    (text.len() as u64 <= MAX_BYTES).then_some(text)
}

fn edition_of_dictionary(text: &str) -> Option<Edition> {
    #[derive(Deserialize)]
    struct Dictionary {
        edition: String,
    }
    let dictionary: Dictionary = serde_json::from_str(text).ok()?;
    Edition::parse(&dictionary.edition)
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    };

    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use tempfile::TempDir;

    use super::*;
    use crate::schema::SCHEMA_VERSION;

    fn write_in(out: &TempDir) {
        let directory = Directory::open(out.path(), None).unwrap();
        write(directory, "node1", DatasetSchema::EMPTY).unwrap();
    }

    fn texts(out: &TempDir) -> [String; 2] {
        [SCHEMA_FILE, README_FILE].map(|name| fs::read_to_string(out.path().join(name)).unwrap())
    }

    #[test]
    fn the_newest_version_stays() {
        let out = TempDir::new().unwrap();
        write_in(&out);
        let ours = texts(&out);
        let edition = DatasetSchema::EMPTY.edition().to_string();
        for text in &ours {
            assert!(text.contains(&edition), "{text}");
        }
        let own = format!("schema {SCHEMA_VERSION}, ");
        for (other, stays) in [("schema 2, ", false), (&own, true), ("schema 99, ", true)] {
            let changed = ours
                .clone()
                .map(|text| text.replace(&own, other) + &" ".repeat(usize::from(stays)));
            for (name, text) in [SCHEMA_FILE, README_FILE].iter().zip(&changed) {
                fs::write(out.path().join(name), text.trim_end().to_owned() + "\n").unwrap();
            }
            let before = texts(&out);
            write_in(&out);
            assert_eq!(texts(&out), if stays { before } else { ours.clone() });
        }
        let names = Directory::open(out.path(), None).unwrap().names().unwrap();
        assert_eq!(names, [README_FILE, SCHEMA_FILE]);
    }

    #[test]
    fn everyone_may_read_them() {
        let out = TempDir::new().unwrap();
        write_in(&out);
        let directory = Directory::open(out.path(), None).unwrap();
        assert_eq!(files_in(&directory), [SCHEMA_FILE, README_FILE]);
        for name in [SCHEMA_FILE, README_FILE] {
            let mode = fs::metadata(out.path().join(name)).unwrap().permissions();
            assert_eq!(mode.mode() & 0o777, 0o644, "{name}");
        }
    }

    /// Who names a directory with `--out` can have files of these names there.
    #[test]
    fn files_of_others_are_left_alone() {
        for text in [
            "# My project\n",
            "{\"tables\": []}",
            "{\"edition\": \"first\"}",
            "",
        ] {
            let out = TempDir::new().unwrap();
            for name in [SCHEMA_FILE, README_FILE] {
                fs::write(out.path().join(name), text).unwrap();
            }
            write_in(&out);
            assert_eq!(texts(&out), [text, text]);
            let directory = Directory::open(out.path(), None).unwrap();
            assert!(files_in(&directory).is_empty(), "{text}");
        }
        let out = TempDir::new().unwrap();
        let elsewhere = TempDir::new().unwrap();
        let target = elsewhere.path().join("x");
        symlink(&target, out.path().join(SCHEMA_FILE)).unwrap();
        let mode = Mode::from_raw_mode(0o666);
        mknodat(CWD, out.path().join(README_FILE), FileType::Fifo, mode, 0).unwrap();
        write_in(&out);
        assert!(!target.exists());
        let large = File::create(&target).unwrap();
        large.set_len(1 << 40).unwrap();
        fs::remove_file(out.path().join(SCHEMA_FILE)).unwrap();
        fs::hard_link(&target, out.path().join(SCHEMA_FILE)).unwrap_or_else(|_| {
            fs::rename(&target, out.path().join(SCHEMA_FILE)).unwrap();
        });
        write_in(&out);
        let left = fs::metadata(out.path().join(SCHEMA_FILE)).unwrap();
        assert_eq!(left.size(), 1 << 40);
    }

    #[test]
    fn many_nodes_write_at_once() {
        let out = TempDir::new().unwrap();
        let old = DatasetSchema::EMPTY.edition().to_string();
        fs::write(
            out.path().join(SCHEMA_FILE),
            format!(
                "{{\"edition\": \"{}\"}}",
                old.replace(&format!("schema {SCHEMA_VERSION}"), "schema 1")
            ),
        )
        .unwrap();
        std::thread::scope(|scope| {
            for node in 0..16 {
                let out = &out;
                scope.spawn(move || {
                    let directory = Directory::open(out.path(), None).unwrap();
                    let node = format!("node{node}");
                    write(directory, &node, DatasetSchema::EMPTY).unwrap();
                });
            }
        });
        let one = TempDir::new().unwrap();
        write_in(&one);
        assert_eq!(texts(&out), texts(&one));
        let names = Directory::open(out.path(), None).unwrap().names().unwrap();
        assert_eq!(names, [README_FILE, SCHEMA_FILE]);
    }
}
