//! CPU lists of the kernel (`bitmap_parselist`): `0-3,8,10-11`.

use std::fmt::Write as _;

/// Above every CPU number of a kernel (`NR_CPUS` is at most 8,192).
const LAST: usize = 65_535;

/// CPUs of a list in ascending order; `None` if the list is malformed. An empty list has no CPUs.
pub fn cpu_list(text: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    let text = text.trim();
    if text.is_empty() {
        return Some(cpus);
    }
    for range in text.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last > LAST {
            return None;
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

/// The list of `cpus`, which are in ascending order.
pub fn cpu_list_text(cpus: &[usize]) -> String {
    let mut text = String::new();
    for range in cpus.chunk_by(|a, b| a + 1 == *b) {
        let comma = if text.is_empty() { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = match range {
            [only] => write!(text, "{comma}{only}"),
            [first, .., last] => write!(text, "{comma}{first}-{last}"),
            [] => Ok(()),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_formats_lists() {
        assert_eq!(cpu_list("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(cpu_list(""), Some(vec![]));
        assert_eq!(cpu_list("5,1-2,2"), Some(vec![1, 2, 5]));
        for malformed in [
            "x",
            "3-1",
            "-1",
            "1-",
            "0-99999999999",
            "1,,2",
            "0x1",
            "0-1:1/2",
        ] {
            assert_eq!(cpu_list(malformed), None, "{malformed}");
        }
        for text in ["", "0", "0-3,8,10-11"] {
            assert_eq!(cpu_list_text(&cpu_list(text).unwrap()), text);
        }
    }
}
