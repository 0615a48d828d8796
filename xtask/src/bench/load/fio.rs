//! fio with one job.

use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::shell;

#[derive(clap::Args)]
pub struct Args {
    /// Arguments of fio
    #[arg(last = true)]
    args: Vec<String>,
}

/// Seconds that the job took, without the preparation of its file.
pub fn run(args: &Args) -> Result<f64> {
    let mut fio = Command::new("fio");
    fio.arg("--output-format=json").args(&args.args);
    let said = shell::stdout(&mut fio)?;
    milliseconds(&said)
        .map(|milliseconds| milliseconds / 1e3)
        .with_context(|| format!("no run time in the report of fio:\n{said}"))
}

/// Notes may come before the report.
fn milliseconds(said: &str) -> Option<f64> {
    let report: Value = serde_json::from_str(&said[said.find('{')?..]).ok()?;
    report["jobs"][0]["job_runtime"].as_f64()
}

#[cfg(test)]
mod tests {
    use super::milliseconds;

    #[test]
    fn a_note_before_the_report() {
        let said = "note: queue depth\n{\"jobs\": [{\"job_runtime\": 1250}]}\n";
        assert_eq!(milliseconds(said), Some(1250.0));
        assert_eq!(milliseconds("{}"), None);
        assert_eq!(milliseconds("fio: nothing"), None);
    }
}
