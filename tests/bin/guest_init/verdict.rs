//! The verdict: numbers of tests.

use std::fmt;

/// Results of all tests, displayed as the line that `cargo xtask vm` expects.
#[derive(Default)]
pub struct Verdict {
    pub passed: u64,
    pub failed: u64,
    pub ignored: u64,
}

impl Verdict {
    /// Records a failure outside of a test.
    pub fn fail(&mut self, why: &str) {
        println!("guest: {why}");
        self.failed += 1;
    }

    /// Adds libtest's `test result: ok. 3 passed; 0 failed; 1 ignored; …`; false for any other
    /// line.
    pub fn add(&mut self, line: &str) -> bool {
        let Some(result) = line.strip_prefix("test result: ") else {
            return false;
        };
        let words: Vec<&str> = result.split([' ', ';']).filter(|w| !w.is_empty()).collect();
        let number = |name: &str| {
            let index = words.iter().position(|word| *word == name)?;
            words.get(index.checked_sub(1)?)?.parse::<u64>().ok()
        };
        let (Some(passed), Some(failed), Some(ignored)) =
            (number("passed"), number("failed"), number("ignored"))
        else {
            return false;
        };
        self.passed += passed;
        self.failed += failed;
        self.ignored += ignored;
        true
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            passed,
            failed,
            ignored,
        } = self;
        write!(
            to,
            "VERDICT passed={passed} failed={failed} ignored={ignored}"
        )
    }
}
