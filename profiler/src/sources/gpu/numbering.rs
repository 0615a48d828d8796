//! GPUs that the numbers in a variable mean.
//!
//! A library numbers the GPUs that its process can open. If a device cgroup or a container hides
//! the others, 0 is not the first GPU of the node.

use std::collections::BTreeSet;

use super::variables::Variables;
use crate::procfs::device_access::{Device, DeviceAccess};

/// GPUs that a process was given, whatever the variables of the libraries say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Share {
    /// `SLURM_STEP_GPUS`, else `SLURM_JOB_GPUS`: Slurm's numbers, which are those of the node.
    pub(super) granted: Option<Vec<u32>>,
    access: DeviceAccess,
}

impl Share {
    pub(super) fn new(variables: &Variables<'_>, access: DeviceAccess) -> Self {
        let numbers = |name| -> Option<Vec<u32>> {
            let words = variables.list(name)?;
            words.iter().map(|word| word.parse().ok()).collect()
        };
        let granted = numbers("SLURM_STEP_GPUS").or_else(|| numbers("SLURM_JOB_GPUS"));
        Self {
            granted: granted.filter(|numbers| !numbers.is_empty()),
            access,
        }
    }

    /// How a library numbers the GPUs of the process.
    pub(super) fn numbering(&self, all: &[Numbered]) -> Numbering {
        let allows = |gpu: &&Numbered| gpu.device.is_none_or(|device| self.access.allows(device));
        let order: Vec<_> = all.iter().filter(allows).map(|gpu| Some(gpu.at)).collect();
        let count = all.iter().map(|gpu| gpu.at).collect::<BTreeSet<_>>().len();
        if order.len() < all.len() {
            return Numbering::new(vec![order], count);
        }
        let mut orders = Vec::new();
        for granted in self.granted(all, count) {
            let is_granted = |at: &Option<usize>| at.is_some_and(|at| granted.contains(&at));
            // With a device cgroup, numbers count the granted GPUs, else those of the node.
            orders.push(order.iter().copied().filter(is_granted).collect());
            let of_node = order.iter().map(|at| at.filter(|_| is_granted(at)));
            orders.push(of_node.collect());
        }
        if orders.is_empty() {
            orders.push(order);
        }
        Numbering::new(orders, count)
    }

    /// Sets of GPUs that Slurm's numbers can mean; none if that is all GPUs.
    fn granted(&self, all: &[Numbered], count: usize) -> BTreeSet<BTreeSet<usize>> {
        let Some(numbers) = &self.granted else {
            return BTreeSet::new();
        };
        let find = |find: &dyn Fn(u32) -> Option<usize>| -> Option<BTreeSet<usize>> {
            numbers.iter().map(|number| find(*number)).collect()
        };
        // Slurm counts the GPUs in the order of the bus; older versions have numbers of files.
        let by_order = find(&|number| Some(all.get(usize::try_from(number).ok()?)?.at));
        let by_file = find(&|number| {
            let mut gpus = all.iter();
            let gpu = gpus.find(|gpu| gpu.device.is_some_and(|(_, minor)| minor == number));
            gpu.map(|gpu| gpu.at)
        });
        let sets: BTreeSet<_> = by_order.into_iter().chain(by_file).collect();
        // The profiler is in the cgroup, too: it sees only the granted GPUs.
        if sets.iter().any(|set| set.len() == count) {
            return BTreeSet::new();
        }
        sets
    }
}

/// A GPU in the order of the node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbered {
    /// Its position in the list of the driver.
    pub(super) at: usize,
    /// Its device file.
    pub(super) device: Option<Device>,
}

/// Orders in which a library may number the GPUs of a process.
#[derive(Debug)]
pub(super) struct Numbering {
    /// The position of a GPU for each number; `None` for a GPU of others.
    orders: Vec<Vec<Option<usize>>>,
    /// Whether some GPUs are not the process's.
    pub(super) is_part: bool,
}

impl Numbering {
    fn new(orders: Vec<Vec<Option<usize>>>, count: usize) -> Self {
        let mut numbering = Self {
            orders,
            is_part: false,
        };
        numbering.is_part = numbering.all().len() < count;
        numbering
    }

    /// All GPUs that can be the process's.
    pub(super) fn all(&self) -> BTreeSet<usize> {
        self.orders.iter().flatten().flatten().copied().collect()
    }

    /// GPUs that variables name. `named` finds those of one order.
    pub(super) fn meaning(&self, named: impl Fn(&[Option<usize>]) -> Named) -> Meaning {
        let mut found: Vec<Named> = self.orders.iter().map(|order| named(order)).collect();
        if let [only] = &mut found[..] {
            return Meaning {
                gpus: std::mem::take(&mut only.gpus),
                is_certain: true,
            };
        }
        found.retain(|named| named.all_exist);
        let sets: BTreeSet<_> = found.into_iter().map(|named| named.gpus).collect();
        if sets.is_empty() {
            return Meaning::one_of(self.all());
        }
        let is_certain = sets.len() == 1;
        let gpus = sets.into_iter().flatten().collect();
        Meaning { gpus, is_certain }
    }
}

/// GPUs that are named if numbers have one order.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) gpus: BTreeSet<usize>,
    /// Whether all that is named exists in this order.
    pub(super) all_exist: bool,
}

/// GPUs of a process.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Meaning {
    pub(super) gpus: BTreeSet<usize>,
    /// Whether all of them are.
    pub(super) is_certain: bool,
}

impl Meaning {
    /// GPUs of which it cannot be told which are the process's.
    pub(super) fn one_of(gpus: BTreeSet<usize>) -> Self {
        Self {
            is_certain: gpus.len() < 2,
            gpus,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::gpu_files::NVIDIA;

    /// GPUs in the order of the bus; the numbers of their files are in another.
    fn all(minors: &[u32]) -> Vec<Numbered> {
        let gpus = minors.iter().enumerate();
        gpus.map(|(at, minor)| Numbered {
            at,
            device: Some((NVIDIA, *minor)),
        })
        .collect()
    }

    /// GPUs that numbers mean, and whether that is certain.
    fn meaning(environment: &str, minors: &[u32], numbers: &[usize]) -> (Vec<usize>, bool) {
        meaning_with(DeviceAccess::default(), environment, minors, numbers)
    }

    fn meaning_with(
        access: DeviceAccess,
        environment: &str,
        minors: &[u32],
        numbers: &[usize],
    ) -> (Vec<usize>, bool) {
        let environment = environment.replace(' ', "\0");
        let share = Share::new(&Variables::new(environment.as_bytes()), access);
        let meaning = share.numbering(&all(minors)).meaning(|order| {
            let found = numbers.iter().map_while(|number| *order.get(*number)?);
            let found: Vec<usize> = found.collect();
            Named {
                all_exist: found.len() == numbers.len(),
                gpus: found.into_iter().collect(),
            }
        });
        (meaning.gpus.into_iter().collect(), meaning.is_certain)
    }

    #[test]
    fn numbers_count_the_gpus_that_slurm_gave() {
        let four = [0, 1, 2, 3];
        for (environment, numbers, expected) in [
            ("HOME=/", vec![0], (vec![0], true)),
            // Renumbered in a device cgroup.
            ("SLURM_JOB_GPUS=1", vec![0], (vec![1], true)),
            ("SLURM_JOB_GPUS=2,3", vec![0, 1], (vec![2, 3], true)),
            ("SLURM_JOB_GPUS=2,3", vec![1], (vec![3], true)),
            // Numbers of the node without one.
            ("SLURM_JOB_GPUS=1", vec![1], (vec![1], true)),
            ("SLURM_JOB_GPUS=2,3", vec![3], (vec![3], true)),
            ("SLURM_JOB_GPUS=1,2", vec![2], (vec![2], true)),
            // Either.
            ("SLURM_JOB_GPUS=1,2", vec![1], (vec![1, 2], false)),
            ("SLURM_JOB_GPUS=0,1", vec![1], (vec![1], true)),
            // Neither: a task with one GPU of its step.
            ("SLURM_STEP_GPUS=3", vec![1], (vec![3], true)),
            ("SLURM_STEP_GPUS=2,3", vec![0, 1, 2], (vec![2, 3], false)),
            // The step's GPUs are a part of the job's.
            (
                "SLURM_JOB_GPUS=0,3 SLURM_STEP_GPUS=3",
                vec![0],
                (vec![3], true),
            ),
            // Not numbers of GPUs of this node.
            ("SLURM_JOB_GPUS=7", vec![1], (vec![1], true)),
            ("SLURM_JOB_GPUS=gpu:1", vec![0], (vec![0], true)),
            ("SLURM_JOB_GPUS=", vec![0], (vec![0], true)),
            ("SLURM_JOB_GPUS=0,1,2,3", vec![2], (vec![2], true)),
        ] {
            let found = meaning(environment, &four, &numbers);
            assert_eq!(found, expected, "{environment} {numbers:?}");
        }
    }

    #[test]
    fn numbers_count_the_gpus_that_can_be_opened() {
        let found = |files: &[u32], environment, numbers: &[usize]| {
            let access = DeviceAccess::to_files(files.iter().map(|minor| (NVIDIA, *minor)));
            meaning_with(access, environment, &[0, 1, 2, 3], numbers)
        };
        let certain = |gpus: &[usize]| (gpus.to_vec(), true);
        assert_eq!(found(&[1, 3], "", &[1]), certain(&[3]));
        assert_eq!(found(&[1, 3], "", &[0, 2, 1]), certain(&[1]));
        assert_eq!(found(&[], "", &[0]), certain(&[]));
        // There is no doubt what Slurm's numbers mean.
        assert_eq!(found(&[1, 2], "SLURM_JOB_GPUS=1,2", &[1]), certain(&[2]));
        // All files are there, but a BPF program may deny some.
        let all = &[0, 1, 2, 3];
        assert_eq!(found(all, "", &[1]), certain(&[1]));
        assert_eq!(found(all, "SLURM_JOB_GPUS=2", &[0]), certain(&[2]));
    }

    #[test]
    fn slurm_has_numbers_of_gpus_or_of_files() {
        let files = [2, 0, 3, 1];
        let found = |environment, numbers| meaning(environment, &files, numbers);
        assert_eq!(found("SLURM_JOB_GPUS=0", &[0]), (vec![0, 1], false));
        // Render nodes.
        let render = |environment| meaning(environment, &[129, 128], &[0]);
        assert_eq!(render("SLURM_JOB_GPUS=128"), (vec![1], true));
        assert_eq!(render("SLURM_JOB_GPUS=0"), (vec![0], true));
        // The profiler is in the cgroup of the job, too, and sees two GPUs.
        let inside = |numbers: &[usize]| meaning("SLURM_JOB_GPUS=1,3", &[1, 3], numbers);
        assert_eq!(inside(&[0]), (vec![0], true));
        assert_eq!(inside(&[1]), (vec![1], true));
        assert_eq!(meaning("SLURM_JOB_GPUS=1", &[1], &[0]), (vec![0], true));
    }
}
