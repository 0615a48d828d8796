//! The verdict of a guest on its serial console.

use anyhow::{Result, bail};

use crate::test::failures::Failures;

/// First word of the verdict, which init prints once at the end.
const VERDICT: &str = "VERDICT";

/// Prefix of the profiler's report on the kernel.
const REPORT: &str = "REPORT ";

/// Output of `profiler check --json` in the guest.
pub fn report(console: &[String]) -> Option<&str> {
    console.iter().find_map(|line| line.strip_prefix(REPORT))
}

/// How a guest ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The machine powered off.
    PoweredOff,
    /// It was killed after a timeout.
    TimedOut,
}

/// Numbers of tests.
#[derive(Debug, PartialEq, Eq)]
pub struct Verdict {
    pub passed: u64,
    pub failed: u64,
    pub ignored: u64,
}

/// Parses the output of a guest; an error unless exactly one verdict reports passed tests only.
pub fn judge(console: &[String], end: End) -> Result<Verdict> {
    if let Some(line) = console.iter().find(|line| line.contains("Kernel panic")) {
        bail!("the kernel panicked: {line}");
    }
    let lines: Vec<&String> = console
        .iter()
        .filter(|line| line.contains(VERDICT))
        .collect();
    let verdict = match (lines.as_slice(), end) {
        ([], End::TimedOut) => bail!("no verdict before the timeout"),
        ([], End::PoweredOff) => bail!("the guest ended without a verdict"),
        ([line], End::PoweredOff) => parse(line),
        ([_], End::TimedOut) => bail!("the guest did not power off after its verdict"),
        (several, _) => bail!("{} verdicts", several.len()),
    };
    let Some(verdict) = verdict else {
        bail!("invalid verdict: {:?}", lines[0]);
    };
    if verdict.passed + verdict.failed == 0 {
        bail!("no tests were run");
    }
    if verdict.failed != 0 {
        let failures = Failures::of(console.iter().map(String::as_str)).text();
        bail!("{} tests failed{failures}", verdict.failed);
    }
    Ok(verdict)
}

/// Parses a line `VERDICT passed=1 failed=0 ignored=0`.
fn parse(line: &str) -> Option<Verdict> {
    let mut words = line.strip_prefix(VERDICT)?.strip_prefix(' ')?.split(' ');
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
        assert_eq!(judged(console, End::PoweredOff), Ok(verdict));
    }

    #[test]
    fn any_other_output_is_a_failure() {
        let good = "VERDICT passed=1 failed=0 ignored=0\n";
        let panic = format!("[   1.0] Kernel panic - not syncing: Oops\n{good}");
        let cases = [
            (String::new(), End::PoweredOff, "ended without a verdict"),
            (String::new(), End::TimedOut, "no verdict before"),
            (good.to_owned(), End::TimedOut, "did not power off"),
            (good.repeat(2), End::PoweredOff, "2 verdicts"),
            (panic, End::PoweredOff, "panicked"),
            (
                good.replace("=1", "=0"),
                End::PoweredOff,
                "no tests were run",
            ),
            (
                good.replace("failed=0", "failed=2"),
                End::PoweredOff,
                "2 tests failed",
            ),
            (good.replace("=1", "=x"), End::PoweredOff, "invalid verdict"),
            (
                good.replace("ignored=0", ""),
                End::PoweredOff,
                "invalid verdict",
            ),
            (
                format!("[   2.0] x{good}"),
                End::PoweredOff,
                "invalid verdict",
            ),
            (
                good.replace("=0\n", "=0 more\n"),
                End::PoweredOff,
                "invalid verdict",
            ),
        ];
        for (console, end, expected) in cases {
            let error = judged(&console, end).expect_err(&console);
            assert!(error.contains(expected), "{error:?} for {console:?}");
        }
    }
}
