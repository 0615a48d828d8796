//! Files of procfs and sysfs that are read repeatedly, with one handle and one buffer.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// Larger than any file read here. The rest of a longer file is not read, so its last values are
/// null.
const LARGEST: usize = 16 << 20;

/// A file whose content the kernel generates at each reading from offset 0.
#[derive(Debug)]
pub(crate) struct KernelFile {
    path: PathBuf,
    file: Option<File>,
    buffer: Vec<u8>,
}

impl KernelFile {
    /// Opens the file at the first reading; it may not exist before.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            file: None,
            buffer: Vec::new(),
        }
    }

    /// Path given to [`KernelFile::new`].
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the present content.
    ///
    /// After an error the next reading opens the file again, because the CPU or device may be back.
    pub(crate) fn read(&mut self) -> io::Result<&[u8]> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let length = self.read_into(&mut buffer).map(<[u8]>::len);
        self.buffer = buffer;
        Ok(&self.buffer[..length?])
    }

    /// As [`KernelFile::read`], into a buffer that many files share.
    pub(crate) fn read_into<'a>(&mut self, buffer: &'a mut Vec<u8>) -> io::Result<&'a [u8]> {
        match self.fill(buffer) {
            Ok(length) => Ok(&buffer[..length]),
            Err(error) => {
                self.file = None;
                Err(error)
            }
        }
    }

    /// Opens the file, so that the first reading takes no longer than later ones.
    pub(crate) fn open(&mut self) -> io::Result<&File> {
        Ok(match &mut self.file {
            Some(file) => file,
            none => none.insert(File::open(&self.path)?),
        })
    }

    fn fill(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let file = self.open()?;
        let mut length = 0;
        loop {
            if length == buffer.len() {
                if length >= LARGEST {
                    return Ok(length);
                }
                buffer.resize((length * 2).max(4096), 0);
            }
            match file.read_at(&mut buffer[length..], length as u64) {
                Ok(0) => return Ok(length),
                Ok(count) => length += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Lines without their line feed. A last line without one was cut off and is ignored.
pub(crate) fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split_inclusive(|&byte| byte == b'\n')
        .filter_map(|line| line.strip_suffix(b"\n"))
}

pub(crate) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
}

/// A decimal number without sign; `None` for anything else.
pub(crate) fn number(word: &[u8]) -> Option<u64> {
    if word.is_empty() {
        return None;
    }
    word.iter().try_fold(0u64, |number, byte| match byte {
        b'0'..=b'9' => number.checked_mul(10)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    })
}

/// A decimal fraction as the kernel prints it; `None` if it is negative or infinite.
pub(crate) fn fraction(word: &[u8]) -> Option<f64> {
    let digits = |&byte: &u8| byte.is_ascii_digit() || byte == b'.';
    if !word.iter().all(digits) {
        return None;
    }
    let value: f64 = str::from_utf8(word).ok()?.parse().ok()?;
    value.is_finite().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_numbers_are_null() {
        assert_eq!(number(b"18446744073709551615"), Some(u64::MAX));
        for bad in ["", "-1", "18446744073709551616", "12x", "0x1f", "1.5", "٣"] {
            assert_eq!(number(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(fraction(b"0.25"), Some(0.25));
        for bad in ["", ".", "-0.1", "nan", "inf", "1e400", "1..2"] {
            assert_eq!(fraction(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn a_truncated_line_is_ignored() {
        let text = b"a 1\n\nb 2\nc 3";
        assert_eq!(lines(text).collect::<Vec<_>>(), [&b"a 1"[..], b"", b"b 2"]);
        assert_eq!(words(b"  a\t1 ").collect::<Vec<_>>(), [b"a", b"1"]);
    }

    #[test]
    fn a_kernel_file_is_generated_at_each_reading() {
        let mut file = KernelFile::new("/proc/uptime".into());
        let first = file.read().unwrap().to_vec();
        std::thread::sleep(std::time::Duration::from_millis(30));
        assert_ne!(first, file.read().unwrap());
        let mut missing = KernelFile::new("/proc/none".into());
        assert!(missing.read().is_err());
        assert_eq!(missing.path(), Path::new("/proc/none"));
    }

    #[test]
    fn a_file_longer_than_a_page_is_read_completely() {
        let mut file = KernelFile::new("/proc/kallsyms".into());
        let length = file.read().unwrap().len();
        assert!(length > 100_000 && length <= LARGEST, "{length}");
        assert_eq!(file.read().unwrap().last(), Some(&b'\n'));
    }
}
