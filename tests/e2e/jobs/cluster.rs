//! A single-node Slurm of Debian's packages, started for one test.

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
    node: String,
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
        Self::on(Hierarchy::V1, plugin, more)
    }

    /// Tracks processes by cgroup v2, under a systemd that is pid 1.
    pub fn on_v2() -> Self {
        Self::on(Hierarchy::V2, "proctrack/cgroup", "")
    }

    fn on(hierarchy: Hierarchy, plugin: &str, more: &str) -> Self {
        let directory = TempDir::new().expect("a directory");
        let path = directory.path();
        // Other users submit jobs as well.
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("our directory");
        // The real host name, because mpirun treats any other name as another machine.
        let node = hostname();
        let key: Vec<u8> = (0..128_u8).map(|byte| byte.wrapping_mul(31)).collect();
        write(&path.join("munge.key"), &key, 0o400);
        write(
            &path.join("slurm.conf"),
            (configuration(path, &node, plugin) + more).as_bytes(),
            0o644,
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
        let daemons = vec![
            munged,
            daemon(&["slurmctld"], &["-i"]),
            daemon(hierarchy.slurmd(), &["-N", &node]),
        ];
        let cluster = Self {
            node,
            hierarchy,
            _daemons: daemons,
            directory,
        };
        wait_until("the node is idle", || {
            let state = cluster.command("sinfo", &["-h", "-o", "%T"]).output();
            state.is_ok_and(|state| state.stdout.starts_with(b"idle"))
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
        let path = self.directory.path().join("script.sh");
        write(&path, format!("#!/bin/bash\n{script}").as_bytes(), 0o755);
        let tasks = format!("--ntasks={tasks}");
        self.ask(
            "sbatch",
            &[
                "--parsable",
                &tasks,
                "--output=job.out",
                path.to_str().expect("UTF-8"),
            ],
        )
    }

    /// Cgroup directory of a job of root, which exists while the job has processes.
    pub fn cgroup(&self, job: &str) -> String {
        match self.hierarchy {
            Hierarchy::V1 => format!("/sys/fs/cgroup/freezer/slurm_{}/uid_0/job_{job}", self.node),
            Hierarchy::V2 => format!("/sys/fs/cgroup/system.slice/{}/job_{job}", self.scope()),
        }
    }

    /// The systemd scope of all jobs with v2.
    fn scope(&self) -> String {
        format!("{}_slurmstepd.scope", self.node)
    }

    pub fn state(&self, job: &str) -> String {
        let text = self.ask("scontrol", &["--oneliner", "show", "job", job]);
        let state = text
            .split(' ')
            .find_map(|word| word.strip_prefix("JobState="));
        state.expect("a state").to_owned()
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
        // slurmd does not remove its own cgroups.
        for hierarchy in ["freezer", "cpuset", "memory", "cpuacct", "cpu,cpuacct"] {
            let root = format!("/sys/fs/cgroup/{hierarchy}/slurm_{}", self.node);
            let _ = fs::remove_dir(format!("{root}/uid_0"));
            let _ = fs::remove_dir(root);
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

fn configuration(directory: &Path, node: &str, plugin: &str) -> String {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let [controller, daemon] =
        listeners.map(|listener| listener.local_addr().expect("an address").port());
    let directory = directory.display();
    format!(
        "ClusterName=e2e\n\
         SlurmctldHost={node}(127.0.0.1)\n\
         SlurmUser=root\n\
         SlurmdUser=root\n\
         AuthType=auth/munge\n\
         AuthInfo=socket={directory}/munge.socket\n\
         CredType=cred/munge\n\
         SlurmctldPort={controller}\n\
         SlurmctldPidFile={directory}/slurmctld.pid\n\
         SlurmctldLogFile={directory}/slurmctld.log\n\
         SlurmdPidFile={directory}/slurmd.pid\n\
         SlurmdLogFile={directory}/slurmd.log\n\
         StateSaveLocation={directory}/state\n\
         SlurmdSpoolDir={directory}/spool\n\
         ProctrackType={plugin}\n\
         TaskPlugin=task/none\n\
         MpiDefault=none\n\
         ReturnToService=2\n\
         SelectType=select/cons_tres\n\
         SelectTypeParameters=CR_Core\n\
         AccountingStorageType=accounting_storage/none\n\
         NodeName={node} NodeAddr=127.0.0.1 Port={daemon} CPUs=2 RealMemory=500 State=UNKNOWN\n\
         PartitionName=d Nodes={node} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE\n"
    )
}
