//! Counting tests.

use std::fmt;

/// What the tests came to; shown as the one line that `cargo xtask vm` looks for.
#[derive(Default)]
pub struct Tally {
    pub passed: u64,
    pub failed: u64,
    pub ignored: u64,
}

impl Tally {
    /// Something else than a test went wrong.
    pub fn fail(&mut self, why: &str) {
        println!("guest: {why}");
        self.failed += 1;
    }

    /// Adds libtest's `test result: ok. 3 passed; 0 failed; 1 ignored; …`; false if it is another line.
    pub fn add(&mut self, line: &str) -> bool {
        let Some(result) = line.strip_prefix("test result: ") else {
            return false;
        };
        let words: Vec<&str> = result.split([' ', ';']).filter(|w| !w.is_empty()).collect();
        let number = |name: &str| {
            let place = words.iter().position(|word| *word == name)?;
            words.get(place.checked_sub(1)?)?.parse::<u64>().ok()
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

impl fmt::Display for Tally {
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
