//! Texts that are on disk until they are written in another order.

use std::{
    fs::File,
    io::{self, BufWriter, Seek as _, Write},
    os::unix::fs::FileExt as _,
    path::Path,
};

/// Texts in a file without a name.
pub struct Spool {
    file: BufWriter<File>,
    length: u64,
}

/// Where a text is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    offset: u64,
    length: u32,
}

impl Spool {
    /// No texts, in a file of this directory.
    ///
    /// # Errors
    ///
    /// When the file cannot be created.
    pub fn new(directory: &Path) -> io::Result<Self> {
        let file = BufWriter::new(tempfile::tempfile_in(directory)?);
        Ok(Self { file, length: 0 })
    }

    /// Adds a text.
    ///
    /// # Errors
    ///
    /// When it cannot be written, or has 4 GiB.
    pub fn put(&mut self, text: &str) -> io::Result<Place> {
        let length = u32::try_from(text.len()).map_err(io::Error::other)?;
        self.file.write_all(text.as_bytes())?;
        let offset = self.length;
        self.length += u64::from(length);
        Ok(Place { offset, length })
    }

    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The text of a place.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn get(&mut self, place: Place) -> io::Result<String> {
        self.file.flush()?;
        let mut text = vec![0; place.length as usize];
        self.file.get_ref().read_exact_at(&mut text, place.offset)?;
        String::from_utf8(text).map_err(io::Error::other)
    }

    /// Writes all texts in the order in which they were added.
    ///
    /// # Errors
    ///
    /// When they cannot be read or written.
    pub fn copy(self, mut output: &mut dyn Write) -> io::Result<()> {
        let mut file = self
            .file
            .into_inner()
            .map_err(io::IntoInnerError::into_error)?;
        file.rewind()?;
        io::copy(&mut file, &mut output).map(drop)
    }
}
