//! A writer of the archives that the kernel unpacks at boot: cpio, format `newc`.
//! <https://www.kernel.org/doc/html/latest/driver-api/early-userspace/buffer-format.html>

use std::io::{Result, Write};

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

/// What stands for the end.
const TRAILER: &str = "TRAILER!!!";

/// An archive that is being written. A directory has to come before what is in it.
pub struct Archive<W> {
    to: W,
    length: usize,
    inode: u32,
}

impl<W: Write> Archive<W> {
    pub fn new(to: W) -> Self {
        Self {
            to,
            length: 0,
            inode: 0,
        }
    }

    pub fn directory(&mut self, path: &str, permissions: u32) -> Result<()> {
        self.entry(path, DIRECTORY | permissions, (0, 0), &[])
    }

    pub fn file(&mut self, path: &str, permissions: u32, content: &[u8]) -> Result<()> {
        self.entry(path, REGULAR | permissions, (0, 0), content)
    }

    pub fn symlink(&mut self, path: &str, target: &str) -> Result<()> {
        self.entry(path, SYMLINK | 0o777, (0, 0), target.as_bytes())
    }

    pub fn character_device(&mut self, path: &str, number: (u32, u32)) -> Result<()> {
        self.entry(path, CHARACTER_DEVICE | 0o600, number, &[])
    }

    /// Nothing is complete without it.
    pub fn finish(mut self) -> Result<W> {
        self.inode = 0;
        self.entry(TRAILER, 0, (0, 0), &[])?;
        Ok(self.to)
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) -> Result<()> {
        let too_large = |_| std::io::Error::other(format!("{path} is too large for this format"));
        let size = u32::try_from(content.len()).map_err(too_large)?;
        let name = path.trim_start_matches('/');
        let name_size = u32::try_from(name.len() + 1).map_err(too_large)?;
        let links = if mode & DIRECTORY == 0 { 1 } else { 2 };
        self.inode += 1;
        let (major, minor) = device;
        let fields = [
            self.inode, mode, 0, 0, links, 0, size, 0, 0, major, minor, name_size, 0,
        ];
        self.write(b"070701")?;
        for field in fields {
            self.write(format!("{field:08X}").as_bytes())?;
        }
        self.write(name.as_bytes())?;
        self.write(b"\0")?;
        self.align()?;
        self.write(content)?;
        self.align()
    }

    fn align(&mut self) -> Result<()> {
        let padding = self.length.next_multiple_of(4) - self.length;
        self.write(&[0; 3][..padding])
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.length += bytes.len();
        self.to.write_all(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::Archive;

    /// One entry, byte for byte as `cpio -o -H newc` writes it.
    #[test]
    fn an_entry_is_a_header_in_hexadecimal_a_name_and_a_content_each_padded() {
        let mut archive = Archive::new(Vec::new());
        archive.file("/a/file", 0o644, b"hello").expect("memory");
        let fields = [
            "070701", "00000001", "000081A4", "00000000", "00000000", "00000001", "00000000",
            "00000005", "00000000", "00000000", "00000000", "00000000", "00000007", "00000000",
        ];
        let expected = fields.concat() + "a/file\0" + "\0\0\0" + "hello" + "\0\0\0";
        assert_eq!(archive.to, expected.as_bytes());
        assert_eq!(archive.to.len() % 4, 0);
    }

    #[test]
    fn an_archive_ends_with_the_trailer() {
        let mut archive = Archive::new(Vec::new());
        archive.directory("/d", 0o755).expect("memory");
        archive.symlink("/d/l", "to/there").expect("memory");
        let bytes = archive.finish().expect("memory");
        let text = String::from_utf8(bytes).expect("ASCII");
        assert!(text.trim_end_matches('\0').ends_with("TRAILER!!!"));
        assert!(text.contains("d/l\0") && text.contains("to/there"));
    }
}
