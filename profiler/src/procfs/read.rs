//! Small files of procfs and sysfs that are read once.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::Path,
    str::FromStr,
};

/// Larger than any file that is read once, even with thousands of mounts or CPUs.
const LARGEST: u64 = 16 << 20;

/// The content of a file, up to a limit.
pub(crate) fn content(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?.take(LARGEST).read_to_end(&mut content)?;
    Ok(content)
}

/// The text of a file without surrounding white space; `None` if it is empty or cannot be read.
pub(crate) fn text(path: &Path) -> Option<String> {
    let bytes = content(path).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    // Texts of device trees end with NUL.
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    (!text.is_empty()).then(|| text.to_owned())
}

/// The number in a file; `None` if there is none.
pub(crate) fn number<T: FromStr>(path: &Path) -> Option<T> {
    text(path)?.parse().ok()
}

/// Names in a directory that begin with `prefix`, in numerical order: `cpu2` before `cpu10`.
pub(crate) fn names(directory: &Path, prefix: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(prefix))
        .collect();
    names.sort_by_cached_key(|name| {
        let digits = name.trim_start_matches(|c: char| !c.is_ascii_digit());
        let word = name.len() - digits.len();
        (
            name[..word].to_owned(),
            digits.parse::<u64>().ok(),
            name.clone(),
        )
    });
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_numerical_order() {
        let directory = std::env::temp_dir().join(format!("profiler-names-{}", std::process::id()));
        for name in ["cpu10", "cpu2", "cpufreq", "node0", "cpu", "cpu1"] {
            fs::create_dir_all(directory.join(name)).unwrap();
        }
        let found = names(&directory, "cpu");
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(found, ["cpu", "cpu1", "cpu2", "cpu10", "cpufreq"]);
        assert!(names(Path::new("/none"), "").is_empty());
    }

    #[test]
    fn malformed_numbers_are_null() {
        assert_eq!(number::<u64>(Path::new("/proc/sys/kernel/osrelease")), None);
        assert_eq!(number::<u64>(Path::new("/none")), None);
        assert!(number::<u32>(Path::new("/proc/sys/kernel/pid_max")).is_some());
    }
}
