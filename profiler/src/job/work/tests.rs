//! Searches of process trees that were recorded under real schedulers.

use super::*;

/// Processes in lines of `ps -eo pid,ppid,stat,wchan,comm,args`.
#[derive(Clone, Default)]
struct Recorded(HashMap<u32, Line>);

#[derive(Clone)]
struct Line {
    process: Process,
    waits: bool,
    arguments: Vec<String>,
}

impl Recorded {
    fn parse(text: &str) -> Self {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let lines = lines.map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let process = Process {
                parent: words[1].parse().expect("a pid"),
                state: words[2].chars().next().expect("a state"),
                comm: words[4].to_owned(),
                start: 1,
                cpu: 1,
                has_terminal: false,
            };
            let arguments = words[5..].iter().map(|word| (*word).to_owned());
            let line = Line {
                process,
                waits: words[3].starts_with("do_wait") || words[3].contains("sigsuspend"),
                arguments: arguments.collect(),
            };
            (words[0].parse().expect("a pid"), line)
        });
        Self(lines.collect())
    }

    fn without(mut self, pids: &[u32]) -> Self {
        self.0.retain(|pid, _| !pids.contains(pid));
        self
    }

    /// Adds lines, or replaces those of the same processes.
    fn with(mut self, lines: &str) -> Self {
        self.0.extend(Self::parse(lines).0);
        self
    }
}

impl ProcessReader for Recorded {
    fn process(&self, pid: u32) -> Option<Process> {
        self.0.get(&pid).map(|line| line.process.clone())
    }

    fn arguments(&self, pid: u32) -> Vec<String> {
        self.0[&pid].arguments.clone()
    }

    fn waits_for_child(&self, pid: u32) -> bool {
        self.0[&pid].waits
    }

    fn children(&self, pid: u32) -> Vec<u32> {
        let children = self.0.iter();
        let children = children.filter(|(_, line)| line.process.parent == pid);
        children.map(|(pid, _)| *pid).collect()
    }

    fn switches(&self, pid: u32) -> Option<u64> {
        self.0.contains_key(&pid).then_some(1)
    }
}

/// A job of which all recorded processes are members, but those that are not in a job's cgroup.
struct Case {
    own: u32,
    srun: Option<u32>,
    outside: &'static [u32],
}

impl Case {
    /// The result of the second search, which can compare with the first.
    fn find(&self, tree: &Recorded) -> Finding {
        let mut search = WorkSearch::default();
        self.search(&mut search, tree);
        self.search(&mut search, tree)
    }

    fn search(&self, search: &mut WorkSearch, tree: &Recorded) -> Finding {
        let members = tree.0.keys().copied();
        let members = members.filter(|pid| !self.outside.contains(pid)).collect();
        let job = Job {
            members: &members,
            own: self.own,
            program: "profiler",
            srun: self.srun,
        };
        search.search(tree, &job)
    }
}

/// The node with the batch script, `srun --overlap profiler run --job & mpirun ./solver; wait` on two
/// nodes under Slurm 22.05, Open MPI 4.1.4 and Linux 6.18.
const BATCH_NODE: &str = "
    3311 1 Ss inet_csk_accept slurmd slurmd -D -N n1
    8052 1 Sl do_wait slurmstepd slurmstepd: [2.extern]
    8060 8052 S hrtimer_nanosleep sleep sleep 100000000
    8064 1 Sl do_wait slurmstepd slurmstepd: [2.batch]
    8068 8064 S do_wait slurm_script /bin/bash /var/spool/slurmd/job00002/slurm_script
    8070 8068 Sl futex_do_wait srun srun --overlap --ntasks-per-node=1 profiler run --job -o prof
    8074 8070 S anon_pipe_read srun srun --overlap --ntasks-per-node=1 profiler run --job -o prof
    8071 8068 Sl poll_schedule_timeou mpirun mpirun --oversubscribe -np 2 ./solver.sh
    8103 8071 Sl futex_do_wait srun srun --kill-on-bad-exit --mpi=none --ntasks=2 orted -mca ess slurm
    8106 8103 S anon_pipe_read srun srun --kill-on-bad-exit --mpi=none --ntasks=2 orted -mca ess slurm
    8085 1 Sl do_wait slurmstepd slurmstepd: [2.0]
    8096 8085 Sl do_epoll_wait profiler /usr/bin/profiler run --job -o prof
    8115 1 Sl do_wait slurmstepd slurmstepd: [2.1]
    8125 8115 Sl poll_schedule_timeou orted /usr/bin/orted -mca ess slurm
    8140 8125 R - solver.sh /bin/bash ./solver.sh
";
const BATCH: Case = Case {
    own: 8096,
    srun: Some(8070),
    outside: &[3311],
};
/// The processes of `mpirun ./solver` there.
const SOLVER: [u32; 6] = [8071, 8103, 8106, 8115, 8125, 8140];

/// The other node of that job.
const OTHER_NODE: &str = "
    3312 1 Ss inet_csk_accept slurmd slurmd -D -N n2
    8051 1 Sl do_wait slurmstepd slurmstepd: [2.extern]
    8059 8051 S hrtimer_nanosleep sleep sleep 100000000
    8086 1 Sl do_wait slurmstepd slurmstepd: [2.0]
    8099 8086 Sl do_epoll_wait profiler /usr/bin/profiler run --job -o prof
    8117 1 Sl do_wait slurmstepd slurmstepd: [2.1]
    8128 8117 Sl poll_schedule_timeou orted /usr/bin/orted -mca ess slurm
    8139 8128 R - solver.sh /bin/bash ./solver.sh
";
const OTHER: Case = Case {
    own: 8099,
    srun: None,
    outside: &[3312],
};

#[test]
fn batch_script_that_waits_for_the_profiler() {
    let tree = Recorded::parse(BATCH_NODE);
    assert!(matches!(BATCH.find(&tree), Finding::Work(pid) if SOLVER.contains(&pid)));
    let ended = tree.without(&SOLVER);
    assert_eq!(BATCH.find(&ended), Finding::Waiting);
    // Also if srun starts a wrapper, and is known only by its port.
    let wrapped = ended.with(
        "8070 8068 Sl futex_do_wait srun srun --overlap sh -c 'profiler.sh'
         8074 8070 S anon_pipe_read srun srun --overlap sh -c 'profiler.sh'
         8090 8085 S do_wait sh sh -c 'profiler.sh'
         8096 8090 Sl do_epoll_wait profiler /usr/bin/profiler run --job -o prof",
    );
    assert_eq!(BATCH.find(&wrapped), Finding::Waiting);
    let unknown = Case {
        srun: None,
        ..BATCH
    };
    let found = unknown.find(&wrapped);
    assert!(
        matches!(found, Finding::Work(8068 | 8070 | 8074)),
        "{found:?}"
    );
}

#[test]
fn node_without_the_script() {
    let tree = Recorded::parse(OTHER_NODE);
    assert_eq!(OTHER.find(&tree), Finding::Work(8139));
    let ended = tree.without(&[8117, 8128, 8139]);
    assert_eq!(OTHER.find(&ended), Finding::Idle);
    // orted without a rank does nothing. A wrapper of the profiler is not the script of the job.
    let wrapped = Recorded::parse(OTHER_NODE).without(&[8139]).with(
        "8090 8086 S do_wait sh sh -c 'profiler.sh'
         8099 8090 Sl do_epoll_wait profiler /usr/bin/profiler run --job -o prof",
    );
    assert_eq!(OTHER.find(&wrapped), Finding::Idle);
}

#[test]
fn background_work_is_work() {
    let ended = Recorded::parse(BATCH_NODE).without(&SOLVER);
    for work in [
        "9000 8068 S hrtimer_nanosleep sleep sleep 600",
        "9000 8068 S do_wait bash bash -c 'sleep 600; true'",
        "9000 1 S do_epoll_wait dask-scheduler python3 dask-scheduler",
        "9000 8068 Sl futex_do_wait srun srun -w n2 ./solver",
        "9000 8068 D io_schedule cp cp a b",
        // A step that sleeps is not the placeholder of the step extern.
        "9000 8064 S hrtimer_nanosleep sleep sleep 100000000",
        // Adopted into the step extern.
        "9000 8052 S hrtimer_nanosleep solver solver",
    ] {
        let tree = ended.clone().with(work);
        assert_eq!(BATCH.find(&tree), Finding::Work(9000), "{work}");
    }
    let zombie = ended.with("9000 8068 Z - solver solver");
    assert_eq!(BATCH.find(&zombie), Finding::Waiting);
}

#[test]
fn script_that_does_not_wait() {
    let ended = Recorded::parse(BATCH_NODE).without(&SOLVER);
    // It computes.
    let tree = ended
        .clone()
        .with("8068 8064 R - slurm_script /bin/bash slurm_script");
    assert_eq!(BATCH.find(&tree), Finding::Work(8068));
    // It pauses in `read -t 20`; first it may have been active since.
    let tree = ended.with("8068 8064 S do_select slurm_script /bin/bash slurm_script");
    let mut search = WorkSearch::default();
    assert_eq!(BATCH.search(&mut search, &tree), Finding::Work(8068));
    assert_eq!(BATCH.search(&mut search, &tree), Finding::Idle);
    let mut active = tree.clone();
    let line = active.0.get_mut(&8068).expect("the script");
    line.process.cpu += 1;
    assert_eq!(BATCH.search(&mut search, &active), Finding::Work(8068));
}

#[test]
fn child_that_is_not_listed_yet_is_work() {
    let tree = Recorded::parse(BATCH_NODE)
        .without(&SOLVER)
        .with("9000 8068 R - bash bash");
    let case = Case {
        outside: &[3311, 9000],
        ..BATCH
    };
    assert_eq!(case.find(&tree), Finding::Work(9000));
}

#[test]
fn profiler_directly_below_the_script() {
    let tree = Recorded::parse(
        "8064 1 Sl do_wait slurmstepd slurmstepd: [2.batch]
         8068 8064 S sigsuspend.isra.0 slurm_script /bin/sh slurm_script
         8069 8068 S do_wait slurm_script /bin/sh slurm_script
         8070 8069 S poll_schedule_timeou sudo sudo profiler run --job 2
         8071 8070 Sl do_epoll_wait profiler profiler run --job 2
         8072 8071 S do_sys_poll scontrol scontrol show job 2",
    );
    let case = Case {
        own: 8071,
        srun: None,
        outside: &[],
    };
    assert_eq!(case.find(&tree), Finding::Waiting);
    // As a task of a step, the same processes are a wrapper.
    let task = tree.with("8064 1 Sl do_wait slurmstepd slurmstepd: [2.0]");
    assert_eq!(case.find(&task), Finding::Idle);
}

/// Under OAR 2.5.9, all of which is in the job's cgroup.
#[test]
fn script_of_oar() {
    let tree = Recorded::parse(
        "8859 1 S poll_schedule_timeou sshd sshd: oar@notty
         8860 8859 Ss poll_schedule_timeou perl perl - 1 OAREXEC
         8877 8860 S do_wait perl perl -e $ENV{TERM} = unknown;
         8878 8877 S do_wait job.sh /bin/bash /home/tester/job.sh
         8879 8878 Sl do_epoll_wait profiler profiler run --job -i 500ms -o profiles
         8880 8878 S do_wait bash bash -c sleep 6; exit 0
         8881 8880 S hrtimer_nanosleep sleep sleep 6",
    );
    let case = Case {
        own: 8879,
        srun: None,
        outside: &[],
    };
    assert!(matches!(case.find(&tree), Finding::Work(8880 | 8881)));
    let ended = tree.without(&[8880, 8881]);
    assert_eq!(case.find(&ended), Finding::Waiting);
}

/// The user can start work from another terminal.
#[test]
fn interactive_shell_that_waits() {
    let mut tree = Recorded::parse(
        "8064 1 Sl do_wait slurmstepd slurmstepd: [2.interactive]
         8068 8064 S do_wait bash -bash
         8071 8068 Sl do_epoll_wait profiler profiler run --job",
    );
    let case = Case {
        own: 8071,
        srun: None,
        outside: &[],
    };
    assert_eq!(case.find(&tree), Finding::Waiting);
    let shell = tree.0.get_mut(&8068).expect("the shell");
    shell.process.has_terminal = true;
    assert_eq!(case.find(&tree), Finding::Idle);
}

#[test]
fn two_profilers_do_not_wait_for_each_other() {
    let second = "
        9000 8068 Sl futex_do_wait srun srun --overlap profiler run --job --step 1
        9001 9000 S anon_pipe_read srun srun --overlap profiler run --job --step 1
        9002 1 Sl do_wait slurmstepd slurmstepd: [2.2]
        9003 9002 Sl do_epoll_wait profiler profiler run --job --step 1";
    let tree = Recorded::parse(BATCH_NODE).without(&SOLVER).with(second);
    assert_eq!(BATCH.find(&tree), Finding::Waiting);
    // A profiler of a command has work.
    let command = "9000 8068 Sl do_epoll_wait profiler profiler run -- ./solver --job";
    let tree = Recorded::parse(BATCH_NODE).without(&SOLVER).with(command);
    assert_eq!(BATCH.find(&tree), Finding::Work(9000));
}

#[test]
fn profiler_of_a_prolog_is_no_relative_of_the_script() {
    let tree = Recorded::parse(BATCH_NODE)
        .without(&SOLVER)
        .without(&[8070, 8074, 8085, 8096]);
    let case = Case {
        own: 5000,
        srun: None,
        outside: &[3311],
    };
    assert_eq!(case.find(&tree), Finding::Work(8068));
    assert_eq!(case.find(&tree.without(&[8068])), Finding::Idle);
}

#[test]
fn the_last_work_is_remembered() {
    let tree = Recorded::parse(OTHER_NODE);
    let mut search = WorkSearch::default();
    assert_eq!(search.witness(&tree), None);
    OTHER.search(&mut search, &tree);
    assert_eq!(search.witness(&tree), Some(8139));
    let zombie = tree.clone().with("8139 8128 Z - solver.sh solver.sh");
    assert_eq!(search.witness(&zombie), None);
    assert_eq!(search.witness(&tree.clone().without(&[8139])), None);
    let mut reused = tree;
    reused.0.get_mut(&8139).expect("the solver").process.start = 2;
    assert_eq!(search.witness(&reused), None);
}
