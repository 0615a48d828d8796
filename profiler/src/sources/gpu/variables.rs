//! Variables of an environment.

/// An environment: `NAME=value` strings, separated by NUL.
pub(super) struct Variables<'a>(&'a [u8]);

/// Longer lists cannot be valid: a UUID has 40 characters.
const LONGEST_LIST: usize = 4096;

impl<'a> Variables<'a> {
    pub(super) fn new(environment: &'a [u8]) -> Self {
        Self(environment)
    }

    pub(super) fn get(&self, name: &str) -> Option<&'a str> {
        let mut strings = self.0.split(|byte| *byte == 0);
        let value =
            strings.find_map(|string| string.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
        std::str::from_utf8(value?).ok()
    }

    /// The words of a list up to the first that is empty or -1, which ends it; `None` if it is longer
    /// than a valid one.
    pub(super) fn list(&self, name: &str) -> Option<Vec<String>> {
        let list = self.get(name).filter(|list| list.len() <= LONGEST_LIST)?;
        let words = list.split(',').map(|word| word.trim().to_owned());
        let ends = |word: &String| word.is_empty() || word == "-1";
        Some(words.take_while(|word| !ends(word)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_an_end() {
        let environment = format!("XA=0\0A= 2,GPU-1,-1,3\0B=\0LONG={}\0", "1,".repeat(4096));
        let variables = Variables::new(environment.as_bytes());
        let of = |words: &[&str]| Some(words.iter().map(|&word| word.to_owned()).collect());
        assert_eq!(variables.list("A"), of(&["2", "GPU-1"]));
        assert_eq!(variables.list("B"), of(&[]));
        assert_eq!(variables.list("LONG"), None);
        assert_eq!(variables.list("C"), None);
    }
}
