//! What the serial console says about a run: one verdict, or none that counts.

use anyhow::{Result, bail};

use crate::test::failures::Failures;

/// What the guest's init prints once, at the end.
const WORD: &str = "VERDICT";

/// What precedes the profiler's own account of the kernel.
const REPORT: &str = "REPORT ";

/// What `profiler check --json` said in the guest.
pub fn report(console: &[String]) -> Option<&str> {
    console.iter().find_map(|line| line.strip_prefix(REPORT))
}

/// How a guest ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The machine was switched off.
    Off,
    /// It was killed after its time.
    Hung,
}

/// Numbers of tests.
#[derive(Debug, PartialEq, Eq)]
pub struct Verdict {
    pub passed: u64,
    pub failed: u64,
    pub ignored: u64,
}

/// Reads what a guest has said.
pub fn judge(console: &[String], end: End) -> Result<Verdict> {
    if let Some(line) = console.iter().find(|line| line.contains("Kernel panic")) {
        bail!("the kernel panicked: {line}");
    }
    let lines: Vec<&String> = console.iter().filter(|line| line.contains(WORD)).collect();
    let verdict = match (lines.as_slice(), end) {
        ([], End::Hung) => bail!("no verdict before the time was up"),
        ([], End::Off) => bail!("the guest ended without a verdict"),
        ([line], End::Off) => parse(line),
        ([_], End::Hung) => bail!("the guest did not switch off after its verdict"),
        (several, _) => bail!("{} verdicts", several.len()),
    };
    let Some(verdict) = verdict else {
        bail!("a verdict that cannot be read: {:?}", lines[0]);
    };
    if verdict.passed + verdict.failed == 0 {
        bail!("no test was run");
    }
    if verdict.failed != 0 {
        let failures = Failures::of(console.iter().map(String::as_str)).text();
        bail!("{} tests failed{failures}", verdict.failed);
    }
    Ok(verdict)
}

/// `VERDICT passed=1 failed=0 ignored=0`, and nothing else on the line.
fn parse(line: &str) -> Option<Verdict> {
    let mut words = line.strip_prefix(WORD)?.strip_prefix(' ')?.split(' ');
    let mut number = |name: &str| {
        let value = words.next()?.strip_prefix(name)?.strip_prefix('=')?;
        value.parse().ok()
    };
    let verdict = Verdict {
        passed: number("passed")?,
        failed: number("failed")?,
        ignored: number("ignored")?,
    };
    words.next().is_none().then_some(verdict)
}

#[cfg(test)]
mod tests {
    use super::{End, Verdict, judge};

    fn judged(console: &str, end: End) -> Result<Verdict, String> {
        let lines: Vec<String> = console.lines().map(str::to_owned).collect();
        judge(&lines, end).map_err(|error| error.to_string())
    }

    #[test]
    fn one_verdict_without_failures_is_success() {
        let console = "test a ... ok\nVERDICT passed=12 failed=0 ignored=1\n";
        let verdict = Verdict {
            passed: 12,
            failed: 0,
            ignored: 1,
        };
        assert_eq!(judged(console, End::Off), Ok(verdict));
    }

    #[test]
    fn all_else_is_failure() {
        let good = "VERDICT passed=1 failed=0 ignored=0\n";
        let panic = format!("[   1.0] Kernel panic - not syncing: Oops\n{good}");
        let cases = [
            (String::new(), End::Off, "ended without a verdict"),
            (String::new(), End::Hung, "no verdict before"),
            (good.to_owned(), End::Hung, "did not switch off"),
            (good.repeat(2), End::Off, "2 verdicts"),
            (panic, End::Off, "panicked"),
            (good.replace("=1", "=0"), End::Off, "no test was run"),
            (
                good.replace("failed=0", "failed=2"),
                End::Off,
                "2 tests failed",
            ),
            (good.replace("=1", "=x"), End::Off, "cannot be read"),
            (good.replace("ignored=0", ""), End::Off, "cannot be read"),
            (format!("[   2.0] x{good}"), End::Off, "cannot be read"),
            (
                good.replace("=0\n", "=0 more\n"),
                End::Off,
                "cannot be read",
            ),
        ];
        for (console, end, expected) in cases {
            let error = judged(&console, end).expect_err(&console);
            assert!(error.contains(expected), "{error:?} for {console:?}");
        }
    }
}
