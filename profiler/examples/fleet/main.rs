//! Writes the runs of a site, made from recorded samples, with the profiler's own writer:
//! `fleet SAMPLES OUT NODES MINUTES SEED [TABLE…]`. `cargo xtask fleet` records the samples.
//!
//! Nodes are profiled as by `profiler run --node --split-by job`: a run per node, and one per job. The
//! recorded minutes are repeated, with other times, process ids, users and labels, and with counters
//! that are scaled by job and node. Energy and GPUs are models.
//!
//! `fleet collect SAMPLES OUT NODES` measures writers that start at the same time in one directory.

mod plan;
mod samples;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, Instant},
};

use profiler::{
    output::dataset::{DatasetOptions, DatasetWriter, Manifest},
    schema::Batch,
    sources::dataset_schema,
};

use self::{
    plan::{APPLICATIONS, Job, Numbers},
    samples::{MINUTE, Samples, Variation},
};

/// 2026-11-20 00:00 UTC, µs.
const START: i64 = 1_795_132_800_000_000;
/// Samples of a node without a job.
const IDLE: &str = "wait_often";
const IDLE_FACTOR: f64 = 0.05;

struct Site {
    samples: BTreeMap<&'static str, Samples>,
    jobs: Vec<Job>,
    nodes: usize,
    minutes: u64,
    seed: u64,
    /// Minutes between Parquet files.
    checkpoint: u64,
    /// Tables to write; all if empty.
    tables: Vec<String>,
    out: PathBuf,
}

fn host(node: usize) -> String {
    format!("node{node:05}")
}

fn node_run(node: usize) -> String {
    format!("20261120T000000Z-{}-812", host(node))
}

fn time(minute: u64) -> i64 {
    START + minute.cast_signed() * MINUTE
}

impl Site {
    fn variation(&self, job: &Job, node: usize, minute: u64) -> Variation {
        let slow = if plan::is_slow(node) { 1.25 } else { 1.0 };
        // Minutes of a job differ, or files would be smaller than real ones.
        let minutes = self.minutes * node as u64 + minute;
        let jitter = Numbers::new(minutes ^ self.seed << 40).within(0.92..1.0);
        Variation {
            // The clocks of nodes differ by less than a tenth of a second.
            at: time(minute) - (node as u64 * 7919 % 90_000).cast_signed(),
            pid: u32::try_from((job.id * 31 + node * 101) as u64 % 3_000_000 + minute * 211)
                .unwrap_or(0),
            factor: job.factor * slow * jitter,
            gpus: plan::has_gpus(node, self.nodes),
        }
    }

    /// The run of a job on one of its nodes.
    fn write_job(&self, job: &Job, node: usize) {
        let of = job.application;
        let partition = if of.gpus { "gpu" } else { "cpu" };
        let labels = [
            Some(("project", of.project)),
            Some(("partition", partition)),
            Some(("name", of.name)),
        ];
        let labels = labels
            .into_iter()
            .chain([of.campaign.map(|campaign| ("campaign", campaign))]);
        let labels: Vec<_> = labels
            .flatten()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let run = format!("slurm-{}", job.id);
        let mut manifest = manifest(&run, node, &job.minutes);
        of.user.clone_into(&mut manifest.user);
        manifest.uid = Some(of.uid);
        manifest.labels = labels.join(",").parse().expect("labels");
        manifest.target = serde_json::json!({
            "what": format!("job {} (Slurm)", job.id),
            "job": {"scheduler": "slurm", "id": job.id.to_string(), "source": "cgroup"},
            "node_run": node_run(node),
        });
        let samples = &self.samples[of.workload];
        let minutes = job.minutes.clone();
        self.write(
            manifest,
            minutes.map(|minute| samples.of_processes(&self.variation(job, node, minute))),
        );
    }

    /// The run of a node.
    fn write_node(&self, node: usize) {
        let mut manifest = manifest(&node_run(node), node, &(0..self.minutes));
        "profiler".clone_into(&mut manifest.user);
        manifest.target = serde_json::json!({"what": "node", "node": true});
        let minutes = (0..self.minutes).map(|minute| {
            let runs = |job: &&Job| job.nodes.contains(&node) && job.minutes.contains(&minute);
            let (workload, variation) = match self.jobs.iter().find(runs) {
                Some(job) => (job.application.workload, self.variation(job, node, minute)),
                None => (
                    IDLE,
                    Variation {
                        at: time(minute),
                        pid: 0,
                        factor: IDLE_FACTOR,
                        gpus: false,
                    },
                ),
            };
            self.samples[workload].of_node(&variation, minute == 0)
        });
        self.write(manifest, minutes);
    }

    fn write(&self, manifest: Manifest, minutes: impl Iterator<Item = Vec<Batch>>) {
        let mut options = DatasetOptions::new(
            self.out.join(&manifest.run_id),
            &manifest.hostname,
            &manifest.run_id,
        );
        options.manifest = Some(manifest);
        options.schema = dataset_schema();
        options.checkpoint = Duration::from_millis(1);
        options.memory_budget = 1 << 30;
        let writer = DatasetWriter::start(options).expect("a writer");
        let mut waiting: BTreeMap<&str, Vec<Batch>> = BTreeMap::new();
        let mut held = 0;
        for minute in minutes {
            let wanted = |batch: &Batch| {
                self.tables.is_empty() || self.tables.iter().any(|name| name == batch.table.name)
            };
            for batch in minute.into_iter().filter(wanted) {
                waiting.entry(batch.table.name).or_default().push(batch);
            }
            held += 1;
            if held == self.checkpoint {
                store(&writer, &mut waiting);
                held = 0;
            }
        }
        store(&writer, &mut waiting);
        let summary = writer.finish().expect("a summary");
        assert!(summary.is_complete(), "{summary:?}");
    }
}

/// Hands rows over and waits until they are in Parquet files. Keyed tables are stored later.
fn store(writer: &DatasetWriter, waiting: &mut BTreeMap<&str, Vec<Batch>>) {
    let waiting = std::mem::take(waiting);
    let has_rows = |batches: &&Vec<Batch>| {
        batches
            .iter()
            .any(|batch| !batch.table.keyed && batch.rows.num_rows() > 0)
    };
    let files = writer.stats().parts + waiting.values().filter(has_rows).count() as u64;
    let batches: Vec<_> = waiting.into_values().flatten().collect();
    if batches.is_empty() {
        return;
    }
    writer.write(batches);
    let deadline = Instant::now() + Duration::from_secs(600);
    while writer.stats().parts < files {
        assert!(Instant::now() < deadline, "{:?}", writer.stats());
        // Thousands of nodes wait at the same time.
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn manifest(run: &str, node: usize, minutes: &std::ops::Range<u64>) -> Manifest {
    let mut manifest = Manifest::new(run, &host(node), time(minutes.start) * 1000).expect("/proc");
    manifest.set_end(time(minutes.end) * 1000);
    manifest.command = ["profiler", "run", "--node", "--split-by", "job"]
        .map(str::to_owned)
        .to_vec();
    manifest.config = serde_json::json!({"interval_ns": 1_000_000_000});
    manifest
}

fn read(samples: &str) -> BTreeMap<&'static str, Samples> {
    let workloads = APPLICATIONS.iter().map(|application| application.workload);
    let read = |workload| (workload, Samples::read(&Path::new(samples).join(workload)));
    workloads.chain([IDLE]).map(read).collect()
}

fn number(text: &str) -> u64 {
    text.parse().expect("a number")
}

fn count(text: &str) -> usize {
    text.parse().expect("a number")
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match *arguments {
        ["collect", samples, out, nodes] => collect(samples, out, count(nodes)),
        [samples, out, nodes, minutes, seed, ref tables @ ..] => {
            let (nodes, minutes, seed) = (count(nodes), number(minutes), number(seed));
            write_site(&Site {
                samples: read(samples),
                jobs: plan::plan(nodes, minutes, seed),
                nodes,
                minutes,
                seed,
                checkpoint: 10,
                tables: tables.iter().map(|&table| table.to_owned()).collect(),
                out: out.into(),
            });
        }
        _ => panic!("SAMPLES OUT NODES MINUTES SEED [TABLE…]"),
    }
}

fn write_site(site: &Site) {
    let of_jobs = site
        .jobs
        .iter()
        .flat_map(|job| job.nodes.clone().map(move |node| (Some(job), node)));
    let work: Vec<_> = of_jobs
        .chain((0..site.nodes).map(|node| (None, node)))
        .collect();
    let total = work.len();
    let work = Mutex::new(work.into_iter().enumerate());
    // Most of them wait for the disk.
    let threads = 4 * std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let next = work.lock().expect("no panics").next();
                    let Some((done, (job, node))) = next else {
                        return;
                    };
                    if done % 500 == 0 {
                        eprintln!("{done} of {total} sessions");
                    }
                    match job {
                        Some(job) => site.write_job(job, node),
                        None => site.write_node(node),
                    }
                }
            });
        }
    });
    let runs = site.jobs.len() + site.nodes;
    println!("{runs} runs, {total} sessions in {}", site.out.display());
}

/// Writes a job of three minutes on all nodes, with a Parquet file per table and minute, and a thread
/// for each node.
fn collect(samples: &str, out: &str, nodes: usize) {
    let job = Job {
        id: 1,
        application: &APPLICATIONS[0],
        nodes: 0..nodes,
        minutes: 0..3,
        factor: 0.8,
    };
    let site = Site {
        samples: read(samples),
        jobs: Vec::new(),
        nodes,
        minutes: 3,
        seed: 1,
        checkpoint: 1,
        tables: Vec::new(),
        out: out.into(),
    };
    let begin = Instant::now();
    let times = std::thread::scope(|scope| {
        let (site, job) = (&site, &job);
        let write = move |node| {
            let begin = Instant::now();
            site.write_job(job, node);
            begin.elapsed()
        };
        let threads = job
            .nodes
            .clone()
            .map(|node| scope.spawn(move || write(node)));
        let threads: Vec<_> = threads.collect();
        let times = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panics"));
        times.collect::<Vec<_>>()
    });
    println!(
        "{nodes} nodes in {:.1} s, the slowest in {:.1} s",
        begin.elapsed().as_secs_f64(),
        times.iter().max().map_or(0.0, Duration::as_secs_f64)
    );
}
