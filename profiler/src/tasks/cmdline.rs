//! A command line as it is stored.

use std::sync::Arc;

use super::Budget;
use crate::procfs::process_file::CMDLINE_MAX;

/// The arguments of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cmdline {
    /// Joined by spaces; of a long one, its beginning.
    pub text: Arc<str>,
    /// Whether the process has more.
    pub truncated: bool,
}

impl Cmdline {
    /// What is kept of any command line, bytes: only those that are longer count against an allowance.
    pub const ALWAYS: usize = 256;

    /// From arguments that each end with NUL, or the beginning of them.
    pub fn of(args: &[u8], truncated: bool) -> Self {
        let end = args.strip_suffix(b"\0").filter(|_| !truncated);
        let args = end.unwrap_or(args);
        // Bytes that are no UTF-8 become longer.
        let text = String::from_utf8_lossy(args).replace('\0', " ");
        let kept = beginning(&text, CMDLINE_MAX);
        Self {
            text: kept.into(),
            truncated: truncated || kept.len() < text.len(),
        }
    }

    /// Whether it counts against an allowance.
    pub fn is_long(&self) -> bool {
        self.text.len() > Self::ALWAYS
    }

    /// As much of it as the allowance of its user has room for.
    #[must_use]
    pub fn within(self, budget: &mut Budget, uid: u32) -> Self {
        if !self.is_long() || budget.take(uid, self.text.len()) {
            return self;
        }
        Self {
            text: beginning(&self.text, Self::ALWAYS).into(),
            truncated: true,
        }
    }
}

/// At most so many bytes of a text, and no half characters.
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
        let text = |args: &[u8]| Cmdline::of(args, false).text.to_string();
        assert_eq!(text(b"sh\0-c\0a b\0"), "sh -c a b");
        assert_eq!(text(b""), "");
        assert_eq!(text(b"\xe2\x82\0a\0\0"), "\u{fffd} a ");
    }

    #[test]
    fn no_command_line_is_longer_than_the_limit() {
        for byte in [0, b'\n', 0xff] {
            let long = Cmdline::of(&vec![byte; CMDLINE_MAX], false);
            assert!(long.text.len() <= CMDLINE_MAX);
            assert_eq!(long.truncated, byte == 0xff);
        }
    }

    #[test]
    fn an_allowance_leaves_the_beginning() {
        let mut budget = Budget::of(2000);
        let long = Cmdline::of(&[b'x'; 900], false);
        assert_eq!(long.clone().within(&mut budget, 7), long);
        let cut = long.clone().within(&mut budget, 7);
        assert_eq!((cut.text.len(), cut.truncated), (Cmdline::ALWAYS, true));
        assert_eq!(long.clone().within(&mut budget, 8), long);
        let short = Cmdline::of(&[b'x'; Cmdline::ALWAYS], false);
        assert_eq!(short.clone().within(&mut budget, 7), short);
    }
}
