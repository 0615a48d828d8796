//! Why tests failed, from what their runner printed.

/// Lines of a message that are shown.
const LINES: usize = 6;

/// The panics in the output of a test runner: who, where, and the begin of the message.
///
/// A report of many tiers repeats them, since they are hours of output apart.
#[derive(Default)]
pub struct Failures {
    seen: Vec<String>,
    /// Lines of the last one that may follow.
    open: usize,
}

impl Failures {
    /// Takes the next line.
    pub fn line(&mut self, line: &str) {
        let line = line.trim();
        if line.starts_with("thread '") && line.contains(" panicked at ") {
            self.seen.push(line.to_owned());
            self.open = LINES;
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

    /// Of all lines of a text.
    pub fn of<'a>(lines: impl IntoIterator<Item = &'a str>) -> Self {
        let mut failures = Self::default();
        lines.into_iter().for_each(|line| failures.line(line));
        failures
    }

    /// Each on lines of its own, after a line break; nothing if there are none.
    pub fn text(self) -> String {
        let mut text = String::new();
        for failure in self.seen {
            // A runner that shows output as it comes repeats it at the end.
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
