//! SKA SDP's perfmon: `metrics/*.json`, data frames, event list, settings of each node.

mod cpu;
mod document;
mod frame;
mod gpu;
pub mod keys;
mod machine;
mod perf;
mod samples;

use std::{
    io::Write as _,
    path::{Path, PathBuf},
};

use serde_json::json;

use self::{
    document::Node,
    frame::Frames,
    keys::Kind,
    samples::{Block, Values},
};
use super::{
    files::{Destination, Files, create_directory, in_file},
    output::failed,
    series::Series,
};
use crate::{analysis::stored_run::StoredRun, failure::Failure};

/// Writes the files into a directory. Returns the files of the run that cannot be read, with the
/// reason.
///
/// # Errors
///
/// When the output cannot be written.
pub fn write(
    series: &Series<'_>,
    files: &mut Files,
    directory: &Path,
) -> Result<Vec<String>, Failure> {
    let run = series.run;
    let every = series.every.map(|every| every.as_secs_f64());
    let mut export = Export {
        run,
        series,
        interval: every.or_else(|| interval(run)),
        job: series.selection.job.clone().unwrap_or_else(|| job(run)),
        files,
        directory,
        failures: Vec::new(),
    };
    for part in ["metrics", "configs"] {
        create_directory(&directory.join(part))?;
    }
    let blocks = cpu::blocks(&mut export);
    export.write("cpu_metrics", blocks)?;
    let blocks = perf::blocks(&mut export);
    if let Some(block) = blocks.first() {
        export.write_events(block)?;
    }
    export.write("perf_metrics", blocks)?;
    let blocks = gpu::blocks(&mut export);
    export.write("nv_gpu_metrics", blocks)?;
    let hosts = machine::document(run, &mut export.failures);
    export.write_document("metrics/meta_data.json", hosts)?;
    for host in run.hosts.iter() {
        if let Some(manifest) = &host.manifest {
            let settings = Node::Value(serde_json::to_value(manifest).map_err(failed)?);
            export.write_document(&format!("configs/{}_run_config.yml", host.name), settings)?;
        }
    }
    let mut failures = export.failures;
    failures.sort_unstable();
    failures.dedup();
    Ok(failures)
}

/// Time between the samples of the run, s.
fn interval(run: &StoredRun) -> Option<f64> {
    let mut manifests = run.manifests();
    let interval = manifests.find_map(|manifest| manifest.config["interval_ns"].as_f64());
    interval.map(|ns| ns / 1e9)
}

/// The batch job of the run, or its name.
pub fn job(run: &StoredRun) -> String {
    let mut manifests = run.manifests();
    let job =
        manifests.find_map(|manifest| Some(manifest.target["job"]["id"].as_str()?.to_owned()));
    job.unwrap_or_else(|| run.id())
}

struct Export<'a> {
    run: &'a StoredRun,
    series: &'a Series<'a>,
    /// Time between samples, s.
    interval: Option<f64>,
    job: String,
    files: &'a mut Files,
    directory: &'a Path,
    failures: Vec<String>,
}

impl Export<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn write_document(&mut self, name: &str, document: Node) -> Result<(), Failure> {
        let destination = Destination::File(self.path(name));
        self.files.write(&destination, |output| {
            document.write("", output).map_err(failed)?;
            writeln!(output).map_err(failed)
        })
    }

    /// Writes a metric: a JSON document with an object for each block, and data frames with their
    /// rows. Without blocks there are no files.
    fn write(&mut self, metric: &str, blocks: Vec<Block>) -> Result<(), Failure> {
        if blocks.is_empty() {
            return Ok(());
        }
        let path = self.path(&format!("metrics/{metric}.json"));
        let mut output = self.files.begin(&path)?;
        let mut frames = Frames::new(self, metric, &blocks)?;
        let names: Vec<_> = blocks.iter().map(|block| block.name.clone()).collect();
        let named = |error| in_file(&path, &failed(error));
        write!(output, "{{\n    \"host_names\": {}", json!(names)).map_err(named)?;
        for block in blocks {
            write!(output, ",\n    {}: ", json!(block.name)).map_err(named)?;
            let node = self.block(block, &mut frames)?;
            node.write("    ", &mut output).map_err(named)?;
        }
        let interval = json!(self.interval);
        writeln!(output, ",\n    \"sampling_frequency\": {interval}\n}}").map_err(named)?;
        output.flush().map_err(named)?;
        frames.finish()
    }

    /// The object of a block, whose samples are added to the data frames.
    fn block(&mut self, mut block: Block, frames: &mut Frames) -> Result<Node, Failure> {
        let host = &self.run.hosts[block.host];
        if block
            .quantities
            .iter()
            .any(|quantity| quantity.kind == Kind::Known)
        {
            block.known = cpu::private_memory(self.run, host, &mut self.failures);
            block
                .facts
                .extend(cpu::processes_of(self.run, host, &mut self.failures));
        }
        let mut values = Values::new(&block, &self.path("metrics")).map_err(failed)?;
        let columns = block.columns();
        self.series
            .of_host(host, &columns, &mut self.failures, |ts, sample| {
                let row = values.add(&block, ts, sample).map_err(failed)?;
                frames.add(&block, &row)
            })?;
        let mut node = values.document(&block.quantities);
        for (key, value) in block.facts {
            node.set(&[key], Node::Value(value));
        }
        Ok(node)
    }

    /// The names of the events, with empty lists.
    fn write_events(&mut self, block: &Block) -> Result<(), Failure> {
        let mut document = Node::default();
        for quantity in &block.quantities {
            document.set(&quantity.path, Node::Value(json!([])));
        }
        document.set(&["time_stamps".to_owned()], Node::Value(json!([])));
        self.write_document(".perf_event_list.json", document)
    }
}
