//! Which jobs run where and when.

use std::ops::Range;

/// Arbitrary numbers: `xorshift64*`.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        let mut numbers = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        numbers.next();
        numbers
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap_or(0)
    }

    /// A number of this range.
    pub fn within(&mut self, range: Range<f64>) -> f64 {
        let part = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        range.start + part * (range.end - range.start)
    }
}

/// A program that users run again and again.
pub struct Application {
    pub user: &'static str,
    pub uid: u32,
    pub project: &'static str,
    pub campaign: Option<&'static str>,
    pub name: &'static str,
    /// Recorded samples.
    pub workload: &'static str,
    pub nodes: usize,
    pub minutes: u64,
    pub gpus: bool,
}

macro_rules! applications {
    ($(
        $user:literal $uid:literal $project:literal $campaign:expr,
        $name:literal $workload:literal $nodes:literal $minutes:literal $gpus:literal;
    )*) => {
        &[$(Application {
            user: $user, uid: $uid, project: $project, campaign: $campaign, name: $name,
            workload: $workload, nodes: $nodes, minutes: $minutes, gpus: $gpus,
        }),*]
    };
}

pub const APPLICATIONS: &[Application] = applications! {
    "chen" 1001 "climate" Some("cmip"), "ocean" "compute" 16 20 false;
    "chen" 1001 "climate" Some("cmip"), "postprocess" "io" 1 10 false;
    "okafor" 1002 "climate" Some("reanalysis"), "assimilate" "pipeline" 8 15 false;
    "silva" 1003 "materials" Some("screening"), "dft" "compute" 4 12 false;
    "silva" 1003 "materials" Some("screening"), "relax" "compute" 1 6 false;
    "novak" 1004 "materials" None, "md" "compute" 8 30 false;
    "novak" 1004 "materials" None, "convert" "io" 1 5 false;
    "haddad" 1005 "genomics" Some("cohort"), "align" "pipeline" 1 10 false;
    "haddad" 1005 "genomics" Some("cohort"), "variants" "io" 4 15 false;
    "ito" 1006 "vision" Some("pretraining"), "train" "compute" 8 20 true;
    "ito" 1006 "vision" None, "notebook" "wait_often" 1 30 true;
    "meyer" 1007 "cfd" None, "mesh" "wait_often" 16 30 false;
};

/// A job on whole nodes, or beside another one.
pub struct Job {
    pub id: usize,
    pub application: &'static Application,
    /// Numbers of its nodes.
    pub nodes: Range<usize>,
    /// Minutes since the start of the dataset.
    pub minutes: Range<u64>,
    /// What its counters are multiplied with.
    pub factor: f64,
}

/// Every fiftieth node needs a quarter more CPU time for the same work.
pub fn is_slow(node: usize) -> bool {
    node % 50 == 17
}

/// The last tenth of the nodes have GPUs.
pub fn has_gpus(node: usize, nodes: usize) -> bool {
    node >= nodes - nodes / 10
}

/// Jobs of `nodes` nodes in this time. The same seed gives the same jobs.
pub fn plan(nodes: usize, minutes: u64, seed: u64) -> Vec<Job> {
    let mut numbers = Numbers::new(seed);
    let mut jobs = Vec::new();
    let mut first = 0;
    while first < nodes {
        let gpus = has_gpus(first, nodes);
        let end = if gpus { nodes } else { nodes - nodes / 10 };
        let fits = |of: &&Application| of.gpus == gpus && first + of.nodes <= end;
        let fitting: Vec<_> = APPLICATIONS.iter().filter(fits).collect();
        let width = fitting
            .get(numbers.below(fitting.len().max(1)))
            .map_or(1, |of| of.nodes);
        let block = first..first + width;
        let of_width: Vec<_> = fitting.into_iter().filter(|of| of.nodes == width).collect();
        // Some nodes have two jobs at a time.
        let lanes = if width == 1 && numbers.below(4) == 0 {
            2
        } else {
            1
        };
        for _ in 0..lanes {
            fill(&mut jobs, &mut numbers, &of_width, &block, minutes);
        }
        first = block.end;
    }
    jobs
}

fn fill(
    jobs: &mut Vec<Job>,
    numbers: &mut Numbers,
    applications: &[&'static Application],
    nodes: &Range<usize>,
    minutes: u64,
) {
    let mut start = numbers.below(2) as u64;
    loop {
        let fits = |of: &&&Application| start + of.minutes <= minutes;
        let fitting: Vec<_> = applications.iter().filter(fits).collect();
        if fitting.is_empty() {
            return;
        }
        let application = fitting[numbers.below(fitting.len())];
        // One job of forty does much less than usual.
        let anomaly = if numbers.below(40) == 0 { 0.4 } else { 1.0 };
        let end = start + application.minutes;
        jobs.push(Job {
            id: 100_001 + jobs.len(),
            application,
            nodes: nodes.clone(),
            minutes: start..end,
            factor: numbers.within(0.76..0.8) * anomaly,
        });
        start = end + numbers.below(2) as u64;
    }
}
