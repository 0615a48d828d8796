//! The event tables of a run.

use std::path::Path;

use perfevents::Catalog;

use super::Error;
use crate::{
    host::{Host, cpu_ids},
    privileges,
};

/// The tables of this machine's CPUs and of the generic events; with a directory, those of
/// [`catalog`].
///
/// # Errors
///
/// If a table of the directory cannot be read or contradicts itself.
pub fn catalog_of(host: &Host, directory: Option<&Path>) -> Result<Catalog, Error> {
    match directory {
        None => Ok(Catalog::builtin_of(&cpu_ids(&host.procfs, &host.sysfs))),
        directory => catalog(directory),
    }
}

/// The built-in tables, amended and replaced by those of a directory.
///
/// # Errors
///
/// If a table of the directory cannot be read or contradicts itself.
pub fn catalog(directory: Option<&Path>) -> Result<Catalog, Error> {
    let builtin = Catalog::builtin().clone();
    let Some(directory) = directory else {
        return Ok(builtin);
    };
    let lowered = privileges::lower();
    let own = Catalog::read(directory).map_err(|error| Error::Catalog {
        directory: directory.to_owned(),
        error,
    })?;
    drop(lowered);
    for uarch in own.iter() {
        if let Some(problem) = uarch.problems(Catalog::meanings()).into_iter().next() {
            return Err(Error::Table {
                directory: directory.to_owned(),
                table: uarch.id.clone(),
                problem,
            });
        }
    }
    Ok(builtin.overridden_by(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_a_directory_are_added_or_replace_others() {
        let directory = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| {
            std::fs::write(directory.path().join(name), text).expect("written");
        };
        let table = "name = \"Mine\"\nvendor = \"Me\"\nsource = \"me\"\n[match]\n";
        write("skx.toml", table);
        write("mine.toml", table);
        write("notes.txt", "no table");
        let changed = catalog(Some(directory.path())).expect("valid");
        assert_eq!(
            changed.iter().count(),
            Catalog::builtin().iter().count() + 1
        );
        let replaced = changed.iter().find(|table| table.id == "skx");
        assert_eq!(replaced.expect("known").name, "Mine");

        write(
            "mine.toml",
            &format!("{table}[group.X]\nhelp = \"\"\nevents = {{ a = \"A\" }}\n"),
        );
        let error = catalog(Some(directory.path()))
            .expect_err("no such event")
            .to_string();
        assert!(
            error.contains("mine.toml: group X: there is no event A"),
            "{error}"
        );
        write("mine.toml", "name = 1");
        let error = catalog(Some(directory.path()))
            .expect_err("no table")
            .to_string();
        assert!(error.contains("mine.toml"), "{error}");
        assert!(catalog(Some(Path::new("/nonexistent"))).is_err());
    }
}
