//! Processes that sleep until they are told to write.

use std::{
    fs::{self, File},
    io::Write as _,
    path::PathBuf,
    process::{Command, Stdio},
};

use crate::{
    procfs::is_idle,
    runs::{ProcessGroup, wait_until},
};

/// A process that writes its input to a file.
pub struct Writer {
    process: ProcessGroup,
    file: PathBuf,
}

impl Writer {
    /// Starts it with this file, which must not exist, and waits until it sleeps, with one byte written.
    ///
    /// # Panics
    ///
    /// If the file or the process cannot be created.
    pub fn start(file: PathBuf) -> Self {
        let output = File::create_new(&file).expect("a file");
        let mut command = Command::new("cat");
        let process = ProcessGroup::start(command.stdin(Stdio::piped()).stdout(output));
        let mut writer = Self { process, file };
        writer.write(b"x");
        wait_until("the first byte is in the file", || {
            writer.size() == 1 && is_idle(writer.pid())
        });
        writer
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Has it write these bytes.
    ///
    /// # Panics
    ///
    /// If it has ended.
    pub fn write(&mut self, bytes: &[u8]) {
        let input = self.process.0.stdin.as_mut().expect("a pipe");
        input.write_all(bytes).expect("written");
    }

    /// Bytes in the file after the first one.
    ///
    /// # Panics
    ///
    /// If the file is gone.
    pub fn written(&self) -> u64 {
        self.size() - 1
    }

    fn size(&self) -> u64 {
        fs::metadata(&self.file).expect("a file").len()
    }

    /// Ends it.
    ///
    /// # Panics
    ///
    /// If it cannot be waited for.
    pub fn end(mut self) {
        drop(self.process.0.stdin.take());
        self.process.0.wait().expect("cat");
    }
}
