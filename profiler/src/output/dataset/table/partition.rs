//! The directory of this host in a table, and the numbers of its files.

use std::io;

use rustix::io::Errno;

use super::WriteContext;
use crate::output::dataset::{files::Directory, journal, parquet_file};

/// The directory, opened or created when it is needed.
#[derive(Default)]
pub struct Partition {
    directory: Option<Directory>,
    next_number: u32,
}

impl Partition {
    /// The directory, if it is open.
    pub fn opened(&self) -> Option<&Directory> {
        self.directory.as_ref()
    }

    /// The directory of `table`; creates it if it is missing.
    pub fn open(&mut self, context: &WriteContext, table: &str) -> io::Result<&Directory> {
        let directory = if let Some(directory) = self.directory.take() {
            directory
        } else {
            let directory = context.run.claim(table)?.claim(&context.host_directory)?;
            let used = directory.names()?;
            let used = used
                .iter()
                .filter_map(|name| parquet_file::number(name).or_else(|| journal::number(name)))
                .max();
            let free = used.map_or(0, |number| number.saturating_add(1));
            self.next_number = self.next_number.max(free);
            directory
        };
        Ok(self.directory.insert(directory))
    }

    /// A number that no Parquet file and no journal has.
    pub fn free_number(&mut self, context: &WriteContext, table: &str) -> io::Result<u32> {
        self.open(context, table)?;
        let number = self.next_number;
        self.next_number = number.saturating_add(1);
        Ok(number)
    }

    /// Opens or creates the directory again at the next write.
    pub fn forget(&mut self) {
        self.directory = None;
    }

    /// The same, if the error means that the directory or its file system no longer exists.
    pub fn forget_if_gone(&mut self, error: &io::Error) {
        if matches!(
            Errno::from_io_error(error),
            Some(Errno::NOENT | Errno::STALE | Errno::NODEV)
        ) {
            self.forget();
        }
    }
}
