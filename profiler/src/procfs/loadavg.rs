//! `/proc/loadavg` (`fs/proc/loadavg.c` in the kernel): `0.42 0.70 0.86 2/84 3211`.
//!
//! This parser replaces that of the `procfs` crate, which reads the averages as 32-bit floats: 0.42
//! becomes 0.419999987.

use super::file::{fraction, number, words};

/// One reading of the file; values that could not be read are null.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LoadAvg {
    /// Load averaged over 1 minute.
    pub(crate) load1: Option<f64>,
    /// Load averaged over 5 minutes.
    pub(crate) load5: Option<f64>,
    /// Load averaged over 15 minutes.
    pub(crate) load15: Option<f64>,
    /// Number of threads of the node.
    pub(crate) threads: Option<u64>,
}

impl LoadAvg {
    /// Parses the line of the file.
    pub(crate) fn parse(text: &[u8]) -> Self {
        let mut words = words(text);
        let mut load = || words.next().and_then(fraction);
        Self {
            load1: load(),
            load5: load(),
            load15: load(),
            threads: words.next().and_then(|tasks| {
                let (_, all) = str::from_utf8(tasks).ok()?.split_once('/')?;
                number(all.as_bytes())
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_values_are_null_and_others_are_kept() {
        let load = LoadAvg::parse(b"0.42 nan 1.5 3/4280 2496732\n");
        let expected = LoadAvg {
            load1: Some(0.42),
            load5: None,
            load15: Some(1.5),
            threads: Some(4280),
        };
        assert_eq!(load, expected);
        for bad in [&b""[..], b"-1 x \xff 3 4", b"\n"] {
            assert_eq!(LoadAvg::parse(bad), LoadAvg::default());
        }
    }
}
