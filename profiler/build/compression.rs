//! The form of the BPF object inside the program: a sixth of its size. The build script compresses it,
//! and `cargo xtask dist` looks for it in what it has built. Both include this file.

use std::io::{self, Write as _};

use flate2::{Compression, write::ZlibEncoder};

/// Compresses an object (zlib); the same object always gives the same bytes.
pub fn compress(object: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(object)?;
    encoder.finish()
}
