//! Command lines as stored in table `process`.

use std::sync::Arc;

use super::Budget;
use crate::procfs::process_file::CMDLINE_MAX;

/// The command line of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cmdline {
    /// Arguments with NUL between them; the beginning of a long command line.
    args: Arc<str>,
    /// Whether the process has more.
    pub truncated: bool,
}

impl Cmdline {
    /// Bytes that are kept of any command line. Only longer ones are charged to a budget.
    pub const SHORT_MAX: usize = 256;

    /// Command line from arguments that end with NUL each; `truncated` if they are incomplete.
    pub fn from_args(args: &[u8], truncated: bool) -> Self {
        let complete = args.strip_suffix(b"\0").filter(|_| !truncated);
        let args = complete.unwrap_or(args);
        // The replacement of invalid UTF-8 is longer.
        let text = String::from_utf8_lossy(args);
        let kept = beginning(&text, CMDLINE_MAX);
        Self {
            args: kept.into(),
            truncated: truncated || kept.len() < text.len(),
        }
    }

    /// Whether the command line of these arguments can be long.
    pub fn can_be_long(args: &[u8]) -> bool {
        // The replacement of an invalid byte has three.
        args.len() > Self::SHORT_MAX
            || args.len() > Self::SHORT_MAX / 3 && std::str::from_utf8(args).is_err()
    }

    /// Arguments, joined by spaces.
    pub fn joined(&self) -> String {
        self.args.replace('\0', " ")
    }

    /// The arguments; the last one of a truncated command line may be incomplete.
    pub fn args(&self) -> impl Iterator<Item = &str> {
        self.args.split('\0')
    }

    /// Length, bytes.
    pub fn size(&self) -> usize {
        self.args.len()
    }

    /// Address of the text, which processes share with their parent until exec.
    pub fn address(&self) -> *const str {
        Arc::as_ptr(&self.args)
    }

    /// Whether it is charged to a budget.
    pub fn is_long(&self) -> bool {
        self.size() > Self::SHORT_MAX
    }

    /// Shortens a long command line if the budget of its user does not suffice.
    #[must_use]
    pub fn within(self, budget: &mut Budget, uid: u32) -> Self {
        if !self.is_long() || budget.try_spend(uid, self.size()) {
            return self;
        }
        Self {
            args: beginning(&self.args, Self::SHORT_MAX).into(),
            truncated: true,
        }
    }
}

/// At most `limit` bytes of a text, ending between two characters.
fn beginning(text: &str, limit: usize) -> &str {
    let mut end = limit.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_joined() {
        let text = |args: &[u8]| Cmdline::from_args(args, false).joined();
        assert_eq!(text(b"sh\0-c\0a b\0"), "sh -c a b");
        assert_eq!(text(b""), "");
        assert_eq!(text(b"\xe2\x82\0a\0\0"), "\u{fffd} a ");
    }

    #[test]
    fn arguments_keep_their_boundaries() {
        let args = |args: &[u8]| {
            let cmdline = Cmdline::from_args(args, false);
            cmdline.args().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(args(b"sh\0-c\0a b\0"), ["sh", "-c", "a b"]);
        assert_eq!(args(b"a\0\0b\0\0"), ["a", "", "b", ""]);
    }

    #[test]
    fn length_is_limited() {
        for byte in [0, b'\n', 0xff] {
            let long = Cmdline::from_args(&vec![byte; CMDLINE_MAX], false);
            assert!(long.size() <= CMDLINE_MAX);
            assert_eq!(long.truncated, byte == 0xff);
        }
    }

    #[test]
    fn beginning_is_kept_without_budget() {
        let mut budget = Budget::new(2000);
        let long = Cmdline::from_args(&[b'x'; 900], false);
        assert_eq!(long.clone().within(&mut budget, 7), long);
        let cut = long.clone().within(&mut budget, 7);
        assert_eq!((cut.size(), cut.truncated), (Cmdline::SHORT_MAX, true));
        assert_eq!(long.clone().within(&mut budget, 8), long);
        let short = Cmdline::from_args(&[b'x'; Cmdline::SHORT_MAX], false);
        assert_eq!(short.clone().within(&mut budget, 7), short);
    }
}
