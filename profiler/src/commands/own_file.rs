//! Reports as files: they replace earlier reports, and nothing else.

use std::{
    fs,
    io::{self, Read as _, Seek as _, SeekFrom},
    path::Path,
};

use crate::{
    failure::{Failure, Reason},
    support::regular_file::{self, Links},
};

/// Marks of the files of this program: in the head of HTML and Markdown, at the end of PDF.
const MARKS: [&str; 3] = [
    "<meta name=\"generator\" content=\"profiler\">",
    MARKDOWN,
    PDF,
];
/// First line of Markdown.
pub(super) const MARKDOWN: &str = "<!-- generator: profiler -->\n";
/// Last line of PDF: a comment after the end, which readers skip.
pub(super) const PDF: &str = "\n% generator: profiler\n";

/// Bytes at each end of a file in which a mark is searched.
const SEARCHED: u64 = 4096;

/// Refuses to replace a file that this program has not written, unless `force`. Devices and pipes
/// are not replaced, but written to.
///
/// # Errors
///
/// When it is such a file, or cannot be read.
pub(super) fn check(path: &Path, force: bool) -> Result<(), Failure> {
    let is_file = fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() > 0);
    if force || path.as_os_str() == "-" || !is_file {
        return Ok(());
    }
    match is_ours(path) {
        Ok(true) => Ok(()),
        Ok(false) => {
            let what = "exists and is not a report of this program";
            let message = format!("{} {what}; --force replaces it", path.display());
            Err(Failure::new(Reason::Output, message))
        }
        Err(error) => {
            let message = format!(
                "cannot check whether {} is a report: {error}; --force replaces it",
                path.display()
            );
            Err(Failure::new(Reason::Output, message))
        }
    }
}

fn is_ours(path: &Path) -> io::Result<bool> {
    let mut file = regular_file::open(path, Links::Followed)?;
    let mut bytes = Vec::new();
    file.by_ref().take(SEARCHED).read_to_end(&mut bytes)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(SEARCHED)))?;
    file.take(SEARCHED).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(MARKS.iter().any(|mark| text.contains(mark)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reports_are_replaced() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        assert!(check(&path, false).is_ok());
        let long = "x".repeat(100_000);
        for (content, is_report) in [
            (String::new(), true),
            (format!("<!DOCTYPE html>{}{long}", MARKS[0]), true),
            (format!("{MARKDOWN}# Run{long}"), true),
            (format!("%PDF-1.4 {long}%%EOF{PDF}"), true),
            ("<!DOCTYPE html><title>thesis</title>".to_owned(), false),
            (format!("{long}{}{long}", MARKS[0]), false),
        ] {
            fs::write(&path, &content).expect("written");
            let refused = check(&path, false).err();
            assert_eq!(refused.is_none(), is_report, "{refused:?}");
            assert!(refused.is_none_or(|why| why.message.contains("--force")));
            assert!(check(&path, true).is_ok());
        }
        assert!(check(Path::new("-"), false).is_ok());
        assert!(check(Path::new("/dev/null"), false).is_ok());
    }
}
