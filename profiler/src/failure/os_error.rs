//! Errors of the operating system as text for users.

use std::{borrow::Cow, io};

/// What the standard library adds to the text of an error of the operating system.
const CODE: &str = " (os error ";

/// A message without the numbers of errors: `No such file or directory (os error 2)` loses the
/// parenthesis, wherever it is in the message.
pub fn without_code(text: &str) -> Cow<'_, str> {
    let Some((before, rest)) = split(text) else {
        return Cow::Borrowed(text);
    };
    let mut message = before.to_owned();
    let mut rest = rest;
    while let Some((before, after)) = split(rest) {
        message.push_str(before);
        rest = after;
    }
    message.push_str(rest);
    Cow::Owned(message)
}

/// Why a temporary file cannot be created, without its name, which the user has not chosen.
pub fn of_temporary(error: &io::Error) -> String {
    let text = error.to_string();
    let cause = text.split(" at path \"").next();
    without_code(cause.unwrap_or_default()).into_owned()
}

/// The text before and after the first number of an error.
fn split(text: &str) -> Option<(&str, &str)> {
    let mut from = 0;
    while let Some(found) = text.get(from..)?.find(CODE) {
        let start = from + found;
        from = start + CODE.len();
        let rest = text.get(from..)?;
        let digits = rest.len()
            - rest
                .trim_start_matches(|char: char| char.is_ascii_digit())
                .len();
        if let (1.., Some(after)) = (digits, rest.get(digits..)?.strip_prefix(')')) {
            return Some((text.get(..start)?, after));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_errors_are_removed() {
        let missing = io::Error::from_raw_os_error(libc::ENOENT);
        let given = format!("/x: {missing}; /y: {missing}: use --out");
        assert!(given.contains("os error 2"), "{given}");
        let missing = "No such file or directory";
        assert_eq!(
            without_code(&given),
            format!("/x: {missing}; /y: {missing}: use --out")
        );
    }

    #[test]
    fn temporary_names_are_not_shown() {
        let error = tempfile::tempfile_in("/proc/x").expect_err("no such directory");
        assert!(!of_temporary(&error).contains("/proc"), "{error}");
        let error = tempfile::Builder::new().tempfile_in("/proc/x");
        let error = error.expect_err("no such directory");
        assert!(error.to_string().contains("/proc/x"), "{error}");
        assert_eq!(of_temporary(&error), "No such file or directory");
        let other = io::Error::other("other");
        assert_eq!(of_temporary(&other), "other");
    }

    #[test]
    fn other_text_stays() {
        for text in [
            "",
            "x (os error )",
            "x (os error 2",
            "x (os error two)",
            "(os error 2)",
        ] {
            assert_eq!(without_code(text), text);
        }
        assert_eq!(
            without_code("a (os error x) (os error 13)"),
            "a (os error x)"
        );
    }
}
