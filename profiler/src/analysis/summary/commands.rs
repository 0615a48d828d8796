//! CPU time by command: processes of different runs are matched by it.

use std::collections::BTreeMap;

use super::{Process, TopProcess};

/// Commands that are kept of a run, those with most CPU time: a run can have any number of processes.
const KEPT: usize = 4096;

/// A command line without numbers, and the rank in a parallel program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Command {
    pub template: String,
    pub rank: Option<i64>,
}

/// The processes of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Use {
    pub processes: u64,
    /// CPU time, s; `None` if it is unknown of all of them.
    pub cpu_s: Option<f64>,
}

/// All commands of a run.
#[derive(Clone, Debug, Default)]
pub struct Commands {
    pub kept: BTreeMap<Command, Use>,
    /// Commands that are not kept.
    pub left_out: usize,
}

/// A text in which `#` stands for each number.
fn template(text: &str) -> String {
    let mut template = String::new();
    let mut in_number = false;
    for c in text.chars() {
        let is_digit = c.is_ascii_digit();
        if !is_digit {
            template.push(c);
        } else if !in_number {
            template.push('#');
        }
        in_number = is_digit;
    }
    template
}

impl Command {
    fn of(process: &Process) -> Self {
        let text = match process.cmdline.as_str() {
            "" => &process.comm,
            line => line,
        };
        Self {
            template: template(text),
            rank: process.rank,
        }
    }
}

impl std::fmt::Display for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.template)?;
        self.rank.map_or(Ok(()), |rank| write!(f, " (rank {rank})"))
    }
}

impl Use {
    fn add(&mut self, other: Self) {
        self.processes += other.processes;
        self.cpu_s = match (self.cpu_s, other.cpu_s) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
    }
}

impl Commands {
    /// Those of the processes of a host.
    pub(super) fn of(processes: &[TopProcess]) -> Self {
        let mut commands = Self::default();
        for top in processes {
            let own = Use {
                processes: 1,
                cpu_s: top.figures.get("cpu_s"),
            };
            let of = commands.kept.entry(Command::of(&top.process));
            of.or_default().add(own);
        }
        commands.limit(KEPT);
        commands
    }

    /// Adds those of another host.
    pub(super) fn merge(&mut self, other: Self) {
        for (command, of) in other.kept {
            self.kept.entry(command).or_default().add(of);
        }
        self.left_out += other.left_out;
        self.limit(KEPT);
    }

    fn limit(&mut self, most: usize) {
        let Some(more) = self.kept.len().checked_sub(most).filter(|more| *more > 0) else {
            return;
        };
        let time = |of: &Use| of.cpu_s.unwrap_or(0.0);
        let mut times: Vec<f64> = self.kept.values().map(time).collect();
        times.sort_by(f64::total_cmp);
        let (least, mut equal) = (times[more], more);
        equal -= times.iter().filter(|time| **time < least).count();
        // Of those with the same time, the first are left out.
        self.kept.retain(|_, of| {
            let is_equal = time(of).total_cmp(&least).is_eq();
            let goes = time(of) < least || (is_equal && equal > 0);
            equal -= usize::from(is_equal && equal > 0);
            !goes
        });
        self.left_out += more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_no_numbers() {
        assert_eq!(
            template("solver --seed 4711 in-003.dat"),
            "solver --seed # in-#.dat"
        );
        assert_eq!(template(""), "");
    }

    #[test]
    fn those_with_least_time_are_left_out() {
        let mut commands = Commands::default();
        for (name, time) in [
            ("a", Some(1.0)),
            ("b", Some(5.0)),
            ("c", None),
            ("d", Some(1.0)),
        ] {
            let command = Command {
                template: name.to_owned(),
                rank: None,
            };
            let of = Use {
                processes: 1,
                cpu_s: time,
            };
            commands.kept.insert(command, of);
        }
        commands.limit(2);
        let kept: Vec<_> = commands.kept.keys().map(ToString::to_string).collect();
        assert_eq!(kept, ["b", "d"]);
        assert_eq!(commands.left_out, 2);
        commands.limit(2);
        assert_eq!((commands.kept.len(), commands.left_out), (2, 2));
    }

    #[test]
    fn unknown_times_are_not_zero() {
        let mut of = Use::default();
        let unknown = Use {
            processes: 1,
            cpu_s: None,
        };
        of.add(unknown);
        assert_eq!(of, unknown);
        of.add(Use {
            processes: 1,
            cpu_s: Some(2.0),
        });
        assert_eq!((of.processes, of.cpu_s), (2, Some(2.0)));
    }
}
