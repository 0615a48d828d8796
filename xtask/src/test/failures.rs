//! Messages of failed tests in the output of a test runner.

/// Maximum number of lines of a message.
const MAX_LINES: usize = 6;

/// The panics of a test runner's output: test, location, and the first lines of the message.
///
/// The final report repeats them, because the output of all tiers is long.
#[derive(Default)]
pub struct Failures {
    seen: Vec<String>,
    /// Number of further lines of the last message.
    open: usize,
}

impl Failures {
    /// Processes the next line.
    pub fn line(&mut self, line: &str) {
        let line = line.trim();
        if line.starts_with("thread '") && line.contains(" panicked at ") {
            self.seen.push(line.to_owned());
            self.open = MAX_LINES;
            return;
        }
        let ends = line.is_empty() || line == "stack backtrace:" || line.starts_with("note: ");
        self.open = if ends { 0 } else { self.open };
        if let (Some(left), Some(last)) = (self.open.checked_sub(1), self.seen.last_mut()) {
            self.open = left;
            last.push_str("\n    ");
            last.push_str(line);
        }
    }

    /// Collects the failures of all lines.
    pub fn of<'a>(lines: impl IntoIterator<Item = &'a str>) -> Self {
        let mut failures = Self::default();
        lines.into_iter().for_each(|line| failures.line(line));
        failures
    }

    /// The messages, each preceded by a line break; empty without failures.
    pub fn text(self) -> String {
        let mut text = String::new();
        for failure in self.seen {
            // Some runners repeat the messages at the end.
            if !text.contains(&failure) {
                text.push_str("\n  ");
                text.push_str(&failure);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::Failures;

    #[test]
    fn messages_without_backtraces() {
        let output = "running 2 tests
test a ... FAILED
---- a stdout ----

thread 'a' (7497) panicked at tests/a.rs:47:5:
assertion `left == right` failed: rows
  left: 1
 right: 2
stack backtrace:
   0: __rustc::rust_begin_unwind
test b ... ok
thread 'a' (7497) panicked at tests/a.rs:47:5:
assertion `left == right` failed: rows
  left: 1
 right: 2
note: run with `RUST_BACKTRACE=1`";
        let expected = "
  thread 'a' (7497) panicked at tests/a.rs:47:5:
    assertion `left == right` failed: rows
    left: 1
    right: 2";
        assert_eq!(Failures::of(output.lines()).text(), expected);
        assert_eq!(Failures::of(["test b ... ok"]).text(), "");
    }
}
