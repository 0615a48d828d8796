//! A Slurm of Debian's packages with one or two nodes on this machine, started for one test.

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use e2e::runs::{ProcessGroup, wait_until};
use tempfile::TempDir;

/// A running Slurm, stopped when it is dropped.
pub struct Cluster {
    directory: TempDir,
    nodes: Vec<String>,
    hierarchy: Hierarchy,
    _daemons: Vec<ProcessGroup>,
}

/// The cgroup version that Slurm uses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hierarchy {
    V1,
    /// v2; systemd creates the cgroup of the jobs.
    V2,
}

impl Hierarchy {
    fn configuration(self) -> &'static str {
        match self {
            Self::V1 => "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n",
            Self::V2 => "CgroupPlugin=cgroup/v2\n",
        }
    }

    /// The command that starts `slurmd`.
    fn slurmd(self) -> &'static [&'static str] {
        match self {
            Self::V1 => &["slurmd"],
            Self::V2 => &[
                "systemd-run",
                "--scope",
                "--quiet",
                "--unit=slurmd-e2e",
                "--property=Delegate=yes",
                "slurmd",
            ],
        }
    }
}

impl Cluster {
    /// Tracks processes by cgroups.
    pub fn start() -> Self {
        Self::tracking("proctrack/cgroup")
    }

    /// Tracks processes with this plugin.
    pub fn tracking(plugin: &str) -> Self {
        Self::with(plugin, "")
    }

    /// Adds lines to the configuration.
    pub fn with(plugin: &str, more: &str) -> Self {
        Self::on(Hierarchy::V1, plugin, vec![hostname()], more)
    }

    /// Two nodes, `n1` and `n2`, each with its slurmd. Profilers that are steps of a job have the
    /// names of their nodes.
    pub fn with_two_nodes() -> Self {
        let nodes = ["n1", "n2"].map(str::to_owned);
        let step_extern = "PrologFlags=Contain\n";
        Self::on(Hierarchy::V1, "proctrack/cgroup", nodes.into(), step_extern)
    }

    /// Tracks processes by cgroup v2, under a systemd that is pid 1.
    pub fn on_v2() -> Self {
        let nodes = vec![hostname()];
        Self::on(Hierarchy::V2, "proctrack/cgroup", nodes, "")
    }

    fn on(hierarchy: Hierarchy, plugin: &str, nodes: Vec<String>, more: &str) -> Self {
        let directory = TempDir::new().expect("a directory");
        let path = directory.path();
        // Other users submit jobs as well.
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("our directory");
        let key: Vec<u8> = (0..128_u8).map(|byte| byte.wrapping_mul(31)).collect();
        write(&path.join("munge.key"), &key, 0o400);
        write(
            &path.join("slurm.conf"),
            (configuration(path, &nodes, plugin) + more).as_bytes(),
            0o644,
        );
        write(
            &path.join("task_prolog"),
            b"#!/bin/sh\necho export PROFILER_HOSTNAME=$SLURMD_NODENAME\n",
            0o755,
        );
        write(
            &path.join("cgroup.conf"),
            hierarchy.configuration().as_bytes(),
            0o644,
        );
        let socket = path.join("munge.socket");
        let munged = ProcessGroup::start(
            Command::new("munged")
                .args(["--foreground", "--force", "--num-threads=1"])
                .arg(option("--key-file", &path.join("munge.key")))
                .arg(option("--socket", &socket))
                .arg(option("--pid-file", &path.join("munged.pid")))
                .arg(option("--log-file", &path.join("munged.log")))
                .arg(option("--seed-file", &path.join("munged.seed")))
                .stderr(Stdio::null()),
        );
        wait_until("munged is ready", || socket.exists());
        let daemon = |words: &[&str], args: &[&str]| {
            let mut command = Command::new(words[0]);
            command
                .args(&words[1..])
                .args(args)
                .arg("-D")
                .env("SLURM_CONF", path.join("slurm.conf"));
            ProcessGroup::start(command.stdout(Stdio::null()).stderr(Stdio::null()))
        };
        let mut daemons = vec![munged, daemon(&["slurmctld"], &["-i"])];
        let slurmds = nodes.iter();
        daemons.extend(slurmds.map(|node| daemon(hierarchy.slurmd(), &["-N", node])));
        let cluster = Self {
            nodes,
            hierarchy,
            _daemons: daemons,
            directory,
        };
        wait_until("the nodes are idle", || {
            let state = cluster.command("sinfo", &["-h", "-N", "-o", "%T"]).output();
            state.is_ok_and(|state| {
                let states = String::from_utf8_lossy(&state.stdout).into_owned();
                states.lines().filter(|state| *state == "idle").count() == cluster.nodes.len()
            })
        });
        cluster
    }

    /// A directory for files of jobs.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Path of its configuration.
    pub fn conf(&self) -> PathBuf {
        self.directory.path().join("slurm.conf")
    }

    /// A Slurm command.
    pub fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(args)
            .env("SLURM_CONF", self.conf())
            .current_dir(self.directory.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs a Slurm command and returns its stdout.
    #[track_caller]
    pub fn ask(&self, program: &str, args: &[&str]) -> String {
        let output = self.command(program, args).output().expect("it starts");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {args:?}: {stderr}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Submits a script and returns the job id.
    pub fn submit(&self, tasks: u32, script: &str) -> String {
        self.submit_with(&[&format!("--ntasks={tasks}")], script)
    }

    /// Submits a script with these options and returns the job id.
    pub fn submit_with(&self, options: &[&str], script: &str) -> String {
        let path = self.directory.path().join("script.sh");
        write(&path, format!("#!/bin/bash\n{script}").as_bytes(), 0o755);
        let script = path.to_str().expect("UTF-8");
        let words = [&["--parsable", "--output=job.out"], options, &[script]].concat();
        self.ask("sbatch", &words)
    }

    /// Cgroup directory of a job of root, which exists while the job has processes.
    pub fn cgroup(&self, job: &str) -> String {
        match self.hierarchy {
            Hierarchy::V1 => format!(
                "/sys/fs/cgroup/freezer/slurm_{}/uid_0/job_{job}",
                self.nodes[0]
            ),
            Hierarchy::V2 => format!("/sys/fs/cgroup/system.slice/{}/job_{job}", self.scope()),
        }
    }

    /// The systemd scope of all jobs with v2.
    fn scope(&self) -> String {
        format!("{}_slurmstepd.scope", self.nodes[0])
    }

    pub fn state(&self, job: &str) -> String {
        let only = format!("--jobs={job}");
        self.ask("squeue", &["-h", "-t", "all", "-o", "%T", &only])
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self
            .command("scancel", &["--full", "--partition=d"])
            .status();
        let is_empty = || {
            let jobs = self.command("squeue", &["-h"]).output();
            jobs.is_ok_and(|jobs| jobs.stdout.is_empty())
        };
        if !std::thread::panicking() {
            wait_until("all jobs are gone", is_empty);
        }
        if self.hierarchy == Hierarchy::V2 {
            let _ = self.command("systemctl", &["stop", &self.scope()]).status();
        }
        // slurmd does not remove its own cgroups. After a panic, the runner of the test ends the
        // processes of jobs and removes theirs.
        for hierarchy in ["freezer", "cpuset", "memory", "cpuacct", "cpu,cpuacct"] {
            for node in &self.nodes {
                let root = PathBuf::from(format!("/sys/fs/cgroup/{hierarchy}/slurm_{node}"));
                for user in fs::read_dir(&root).into_iter().flatten().flatten() {
                    let _ = fs::remove_dir(user.path());
                }
                let _ = fs::remove_dir(root);
            }
        }
    }
}

fn hostname() -> String {
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    name.split('.').next().expect("a name").to_owned()
}

fn option(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}

fn write(path: &Path, bytes: &[u8], mode: u32) {
    fs::write(path, bytes).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("our file");
}

fn configuration(directory: &Path, nodes: &[String], plugin: &str) -> String {
    let listeners: Vec<_> = (0..=nodes.len())
        .map(|_| TcpListener::bind("127.0.0.1:0").expect("a port"))
        .collect();
    let mut ports = listeners
        .iter()
        .map(|listener| listener.local_addr().expect("an address").port());
    let controller = ports.next().expect("a port");
    // mpirun treats a node with a name other than the host's as another machine.
    let hostname = hostname();
    let nodes_and_ports = nodes.iter().zip(ports).map(|(node, port)| {
        format!(
            "NodeName={node} NodeHostname={hostname} NodeAddr=127.0.0.1 Port={port} CPUs=2 \
             RealMemory=500 State=UNKNOWN\n"
        )
    });
    let node_lines: String = nodes_and_ports.collect();
    let directory = directory.display();
    let task_prolog = if nodes.len() > 1 {
        format!("TaskProlog={directory}/task_prolog\n")
    } else {
        String::new()
    };
    let nodes = nodes.join(",");
    // Jobs of different clusters have different ids, so that none is taken for another one.
    let first_job = std::process::id();
    format!(
        "ClusterName=e2e\n\
         FirstJobId={first_job}\n\
         SlurmctldHost={hostname}(127.0.0.1)\n\
         SlurmUser=root\n\
         SlurmdUser=root\n\
         AuthType=auth/munge\n\
         AuthInfo=socket={directory}/munge.socket\n\
         CredType=cred/munge\n\
         SlurmctldPort={controller}\n\
         SlurmctldPidFile={directory}/slurmctld.pid\n\
         SlurmctldLogFile={directory}/slurmctld.log\n\
         SlurmdPidFile={directory}/slurmd-%n.pid\n\
         SlurmdLogFile={directory}/slurmd-%n.log\n\
         StateSaveLocation={directory}/state\n\
         SlurmdSpoolDir={directory}/spool-%n\n\
         ProctrackType={plugin}\n\
         TaskPlugin=task/none\n\
         MpiDefault=none\n\
         ReturnToService=2\n\
         SelectType=select/cons_tres\n\
         SelectTypeParameters=CR_Core\n\
         AccountingStorageType=accounting_storage/none\n\
         {node_lines}{task_prolog}\
         PartitionName=d Nodes={nodes} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE\n"
    )
}
