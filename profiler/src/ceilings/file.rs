//! Files with ceilings: those of `profiler ceilings`, and those of a site, in TOML.

use std::{
    fmt::Display,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::machine::Machine;
use crate::{
    failure::{Failure, Reason, os_error::of_temporary},
    support::regular_file::{self, Links},
};

/// Directory of the files that root writes.
const SYSTEM: &str = "/var/lib/profiler/ceilings";

/// Peak performance and bandwidths of a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ceilings {
    /// Version of the profiler that measured them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// When they were measured; `None` in a file of a site.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<String>,
    /// CPUs on which they were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<String>,
    /// Why the node was busy during the measurement (`--force`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub busy: Vec<String>,
    /// The machine. A file of a site can have some of the facts, or none.
    pub machine: Machine,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    pub flops: Vec<Flops>,
    pub bandwidth: Vec<Bandwidth>,
}

/// Memory channels of the node, from which the theoretical bandwidth follows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// Of all sockets.
    pub channels: u32,
    /// Of 8 bytes, in each channel.
    pub transfers_per_second: f64,
}

/// Floating-point operations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flops {
    /// `single`, `double` or `half`.
    pub precision: Precision,
    /// The loop, or what the site calls it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// CPUs that computed at the same time; all if it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<usize>,
    /// FLOP/s.
    pub per_second: f64,
    /// (maximum − minimum) / median of the repetitions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<f64>,
}

/// Precision of floating-point numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    Double,
    Single,
    Half,
}

/// Bytes of a level of the memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bandwidth {
    /// `L1`, `L2`, `L3` or `DRAM`.
    pub level: String,
    /// `load` or `triad`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<String>,
    /// CPUs that used it at the same time; all if it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<usize>,
    /// B/s.
    pub per_second: f64,
    /// (maximum − minimum) / median of the repetitions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<f64>,
    /// Bytes that each thread used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

impl Ceilings {
    /// Parses a file.
    ///
    /// # Errors
    ///
    /// When the text is invalid.
    pub fn parse(text: &str) -> Result<Self, String> {
        let ceilings: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| text[..span.start].lines().count());
            let line = line.map_or(String::new(), |line| format!("line {}: ", line.max(1)));
            format!("{line}{}", error.message())
        })?;
        let rates = ceilings.flops.iter().map(|flops| flops.per_second);
        let rates = rates.chain(
            ceilings
                .bandwidth
                .iter()
                .map(|bandwidth| bandwidth.per_second),
        );
        let rates = rates.chain(
            ceilings
                .memory
                .iter()
                .map(|memory| memory.transfers_per_second),
        );
        match rates
            .into_iter()
            .find(|rate| !rate.is_finite() || *rate <= 0.0)
        {
            Some(rate) => Err(format!("{rate}: not a positive rate")),
            None => Ok(ceilings),
        }
    }

    /// Reads a file that the user names.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or is invalid.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let text = regular_file::read_to_string(path, Links::Followed);
        let text = text.map_err(|error| error.to_string());
        let parsed = text.and_then(|text| Self::parse(&text));
        parsed.map_err(|why| {
            Failure::new(
                Reason::Usage,
                format!("cannot read {}: {why}", path.display()),
            )
        })
    }

    /// Refuses a file that [`Self::write`] could not write, and to replace one of another kind.
    ///
    /// # Errors
    ///
    /// When it is such a file.
    pub fn check_output(path: &Path) -> Result<(), Failure> {
        let found = path.metadata().ok();
        let is_other = found
            .is_some_and(|found| !found.is_file() || found.len() > 0 && Self::read(path).is_err());
        if is_other {
            let what = "exists and is not a file of ceilings; choose another --output";
            let message = format!("{} {what}", path.display());
            return Err(Failure::new(Reason::Output, message));
        }
        // Directories below the first that exists are created.
        let above = path.ancestors().skip(1);
        let existing = above
            .filter(|it| !it.as_os_str().is_empty())
            .find(|it| it.exists());
        let written = tempfile::tempfile_in(existing.unwrap_or(Path::new(".")));
        written.map_err(|error| cannot_write(path, of_temporary(&error)))?;
        Ok(())
    }

    /// Writes the file, and the directories in which it is.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        let text = toml::to_string(self).map_err(Failure::internal)?;
        let directory = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        if let Some(directory) = directory {
            fs::create_dir_all(directory).map_err(|error| cannot_write(path, error))?;
        }
        // Renamed, so that a report never reads half a file.
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let temporary = path.with_file_name(format!(".{name}.{}", std::process::id()));
        // Anything may have this name in a directory of another user.
        let written = fs::File::create_new(&temporary)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .and_then(|()| fs::rename(&temporary, path));
        written.map_err(|error| {
            let _ = fs::remove_file(&temporary);
            cannot_write(path, error)
        })
    }
}

/// Directories with files of measurements, first that in which this user writes.
pub fn directories() -> Vec<PathBuf> {
    let system = PathBuf::from(SYSTEM);
    if rustix::process::geteuid().is_root() {
        return vec![system];
    }
    let named = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let state = named("XDG_STATE_HOME").map(PathBuf::from);
    let state = state.or_else(|| Some(Path::new(&named("HOME")?).join(".local").join("state")));
    let own = state.map(|state| state.join("profiler").join("ceilings"));
    own.into_iter().chain([system]).collect()
}

/// Name of the file of the machine, which is the same for all equal machines.
pub fn file_name(machine: &Machine) -> String {
    let name = ["cpu_model_name", "cpu_part"];
    let name = name.iter().find_map(|name| machine.get(name));
    let words = name.unwrap_or("cpu").to_lowercase();
    let words = words.split(|c: char| !c.is_ascii_alphanumeric());
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    let facts = machine
        .iter()
        .map(|(name, fact)| format!("{name}={fact}\n"));
    let hash = Sha256::digest(facts.collect::<String>());
    let hash = hash.iter().take(4);
    let hash = hash.fold(0, |hash: u32, byte| hash << 8 | u32::from(*byte));
    format!("{}-{hash:08x}.toml", words.join("-"))
}

/// All measurements in a directory. Files that cannot be read are returned with the reason.
pub fn stored(directory: &Path) -> (Vec<Ceilings>, Vec<String>) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == "toml")
    });
    paths.sort();
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    for path in paths {
        match Ceilings::read(&path) {
            Ok(ceilings) => found.push(ceilings),
            Err(failure) => problems.push(failure.message),
        }
    }
    (found, problems)
}

fn cannot_write(path: &Path, cause: impl Display) -> Failure {
    let message = format!("cannot write {}: {cause}", path.display());
    Failure::new(Reason::Output, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SITE: &str = "
        [machine]
        cpu_model_name = 'Example 9'
        [memory]
        channels = 8
        transfers_per_second = 4.8e9
        [[flops]]
        precision = 'double'
        per_second = 3.1e12
        [[bandwidth]]
        level = 'DRAM'
        per_second = 2.5e11
    ";

    #[test]
    fn other_files_are_not_replaced() {
        let directory = tempfile::TempDir::new().expect("a directory");
        let path = directory.path().join("ceilings.toml");
        assert!(Ceilings::check_output(&path).is_ok());
        for (content, is_ours) in [("", true), (SITE, true), ("thesis", false)] {
            fs::write(&path, content).expect("written");
            assert_eq!(Ceilings::check_output(&path).is_ok(), is_ours, "{content}");
        }
        for other in [directory.path(), Path::new("/dev/null")] {
            assert!(Ceilings::check_output(other).is_err(), "{other:?}");
        }
    }

    #[test]
    fn directory_that_cannot_be_written_is_refused() {
        for path in ["/proc/ceilings.toml", "/proc/new/ceilings.toml"] {
            let refused = Ceilings::check_output(Path::new(path)).expect_err("no file");
            let expected = format!("cannot write {path}: No such file or directory");
            assert_eq!(refused.message, expected);
        }
    }

    #[test]
    fn files_are_read_as_they_were_written() {
        let directory = tempfile::TempDir::new().expect("a directory");
        let mut ceilings = Ceilings::parse(SITE).expect("valid");
        ceilings.measured = Some("2026-11-23 10:00:00".to_owned());
        ceilings.flops[0].spread = Some(0.01);
        let path = directory
            .path()
            .join("a/b")
            .join(file_name(&ceilings.machine));
        ceilings.write(&path).expect("written");
        fs::write(path.with_file_name("broken.toml"), "flops = 3").expect("written");
        fs::write(path.with_file_name("note.txt"), "x").expect("written");
        let (found, problems) = stored(path.parent().expect("a directory"));
        assert_eq!(found, [ceilings]);
        assert_eq!(problems.len(), 1);
        assert!(
            problems[0].contains("broken.toml: line 1: "),
            "{problems:?}"
        );
    }

    #[test]
    fn machines_have_files_of_their_own() {
        let of = |model: &str| Ceilings::parse(&SITE.replace("Example 9", model)).expect("valid");
        let name = file_name(&of("AMD EPYC (TM) 9/../x").machine);
        assert!(name.starts_with("amd-epyc-tm-9-x-"), "{name}");
        assert_ne!(
            file_name(&of("Example 1").machine),
            file_name(&of("Example-1").machine)
        );
        assert_eq!(
            file_name(&of("Example 1").machine),
            file_name(&of("Example 1").machine)
        );
    }

    #[test]
    fn errors_say_where_they_are() {
        for (old, new, why) in [
            ("'double'", "'quad'", "line 8: unknown variant `quad`"),
            ("2.5e11", "-1.0", "-1: not a positive rate"),
            ("level", "height", "line 11: unknown field `height`"),
        ] {
            let error = Ceilings::parse(&SITE.replace(old, new)).expect_err("invalid");
            assert!(error.starts_with(why), "{error}");
        }
    }
}
