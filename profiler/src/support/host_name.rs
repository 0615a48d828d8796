//! Names of hosts.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Longest name, as in DNS, bytes.
const MAX: usize = 253;

/// The name of a node: part of file names, messages and reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostName(String);

/// Why a text is no name of a host.
#[derive(Clone, Copy, Debug, Error)]
#[error(
    "the name of a host has 1 to {MAX} letters, digits, `-`, `_` and `.`, which is not the first"
)]
pub struct InvalidHostName;

impl FromStr for HostName {
    type Err = InvalidHostName;

    fn from_str(text: &str) -> Result<Self, InvalidHostName> {
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let is_name = !text.is_empty() && !text.starts_with('.') && text.bytes().all(is_valid);
        if is_name && text.len() <= MAX {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidHostName)
        }
    }
}

impl TryFrom<String> for HostName {
    type Error = InvalidHostName;

    fn try_from(text: String) -> Result<Self, InvalidHostName> {
        text.parse()
    }
}

impl From<HostName> for String {
    fn from(name: HostName) -> Self {
        name.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_letters_digits_and_few_signs() {
        let longest = "x".repeat(MAX);
        for name in ["node01", "gpu-7_b.example.org", "-", &longest] {
            assert_eq!(name.parse::<HostName>().expect("valid").to_string(), name);
        }
        let too_long = "x".repeat(MAX + 1);
        for text in [
            "", ".", "..", ".a", "a b", "a/b", "a\n", "\u{1b}", "é", &too_long,
        ] {
            assert!(text.parse::<HostName>().is_err(), "{text:?}");
        }
    }
}
