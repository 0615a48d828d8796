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

/// Duration of the job in s, without the preparation of its file.
pub fn run(args: &Args) -> Result<f64> {
    let mut fio = Command::new("fio");
    fio.arg("--output-format=json").args(&args.args);
    let output = shell::stdout(&mut fio)?;
    milliseconds(&output)
        .map(|milliseconds| milliseconds / 1e3)
        .with_context(|| format!("no run time in the report of fio:\n{output}"))
}

/// Notes can precede the report.
fn milliseconds(output: &str) -> Option<f64> {
    let report: Value = serde_json::from_str(&output[output.find('{')?..]).ok()?;
    report["jobs"][0]["job_runtime"].as_f64()
}

#[cfg(test)]
mod tests {
    use super::milliseconds;

    #[test]
    fn notes_before_the_report_are_skipped() {
        let output = "note: queue depth\n{\"jobs\": [{\"job_runtime\": 1250}]}\n";
        assert_eq!(milliseconds(output), Some(1250.0));
        assert_eq!(milliseconds("{}"), None);
        assert_eq!(milliseconds("fio: nothing"), None);
    }
}
