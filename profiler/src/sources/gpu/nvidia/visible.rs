//! `CUDA_VISIBLE_DEVICES` (CUDA C++ Programming Guide, environment variables), and
//! `NVIDIA_VISIBLE_DEVICES` (NVIDIA Container Toolkit, enumeration of GPUs).

use super::{
    super::{
        numbering::{Meaning, Named, Numbered},
        variables::Variables,
        visible::{Known, Selects},
    },
    mig::MigNames,
};
use crate::procfs::{device_access::DeviceAccess, gpu_files::NVIDIA};

/// GPUs and MIG instances that `CUDA_VISIBLE_DEVICES` makes visible.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in super::super) struct Cuda {
    /// Numbers and UUIDs of `CUDA_VISIBLE_DEVICES`.
    words: Option<Vec<String>>,
    /// Those of `NVIDIA_VISIBLE_DEVICES` in a container, whose device files show the GPUs, but not the
    /// instances.
    container: Vec<String>,
    /// Whether numbers are in the order of PCI addresses, as in NVML, and not by speed.
    by_bus: bool,
}

impl Selects for Cuda {
    const VARIABLES: &str = "CUDA_VISIBLE_DEVICES";

    fn of_environment(variables: &Variables<'_>, access: &DeviceAccess) -> Option<Self> {
        let words = variables.list("CUDA_VISIBLE_DEVICES");
        let container = variables.list("NVIDIA_VISIBLE_DEVICES");
        let container = container.filter(|_| access.is_of_container());
        (words.is_some() || container.is_some()).then(|| Self {
            words,
            container: container.unwrap_or_default(),
            by_bus: variables.get("CUDA_DEVICE_ORDER") == Some("PCI_BUS_ID"),
        })
    }
}

/// A GPU that the variable may contain.
#[derive(Clone, Debug)]
pub(super) struct Candidate<'a> {
    /// Minor number of `/dev/nvidiaN`.
    pub(super) minor: Option<u32>,
    pub(super) uuid: Option<&'a str>,
    pub(super) name: Option<&'a str>,
    pub(super) instances: Vec<MigNames>,
}

/// What a word stands for.
enum Word<'a> {
    Number(usize),
    /// Beginning of the UUID of a GPU.
    Gpu(&'a str),
    Instance(Mig<'a>),
}

/// A MIG instance.
enum Mig<'a> {
    /// Beginning of its UUID: `MIG-…`.
    Uuid(&'a str),
    /// UUID of the GPU, ids of GPU instance and compute instance: `MIG-GPU-UUID/GI/CI`.
    Ids(&'a str, u32, u32),
    /// Number of the GPU, and of the instance on it: `0:1`.
    Numbers(usize, u32),
}

impl<'a> Word<'a> {
    fn new(word: &'a str) -> Self {
        let ids = || {
            let mut parts = word.strip_prefix("MIG-")?.split('/');
            let gpu = parts.next().filter(|gpu| gpu.starts_with("GPU-"))?;
            let mut id = || parts.next()?.parse().ok();
            Some(Mig::Ids(gpu, id()?, id()?))
        };
        let numbers = || {
            let (gpu, instance) = word.split_once(':')?;
            Some(Mig::Numbers(gpu.parse().ok()?, instance.parse().ok()?))
        };
        if let Ok(number) = word.parse() {
            Self::Number(number)
        } else if let Some(instance) = ids().or_else(numbers) {
            Self::Instance(instance)
        } else if word.starts_with("MIG-") {
            Self::Instance(Mig::Uuid(word))
        } else {
            Self::Gpu(word)
        }
    }

    fn has_number(&self) -> bool {
        matches!(self, Self::Number(_) | Self::Instance(Mig::Numbers(..)))
    }

    /// Position of the GPU, if numbers have this order.
    fn gpu(&self, order: &[Option<usize>], all: &[Candidate<'_>]) -> Option<usize> {
        let with_uuid = |begin: &str| {
            let mut uuids = all.iter().map(|gpu| gpu.uuid);
            uuids.position(|uuid| uuid.is_some_and(|uuid| uuid.starts_with(begin)))
        };
        match *self {
            Self::Number(number) | Self::Instance(Mig::Numbers(number, _)) => *order.get(number)?,
            Self::Gpu(uuid) | Self::Instance(Mig::Ids(uuid, ..)) => with_uuid(uuid),
            Self::Instance(Mig::Uuid(uuid)) => all.iter().position(|gpu| {
                let mut instances = gpu.instances.iter();
                instances.any(|instance| instance.uuid.starts_with(uuid))
            }),
        }
    }
}

/// GPUs that a process may use; `None` if it is not restricted.
pub(super) fn gpus(known: &Known<Cuda>, all: &[Candidate<'_>]) -> Option<Meaning> {
    let numbered: Vec<Numbered> = all
        .iter()
        .enumerate()
        .map(|(at, gpu)| Numbered {
            at,
            device: gpu.minor.map(|minor| (NVIDIA, minor)),
        })
        .collect();
    let mut share = known.share.clone();
    if all.iter().any(|gpu| !gpu.instances.is_empty()) {
        // Slurm counts instances.
        share.granted = None;
    }
    let numbering = share.numbering(&numbered);
    let selection = known.selection.as_ref();
    let words = selection.and_then(|cuda| cuda.words.as_ref());
    let Some((cuda, words)) = selection.zip(words) else {
        let whole = |order: &[Option<usize>]| Named {
            gpus: order.iter().flatten().copied().collect(),
            all_exist: true,
        };
        return numbering.is_part.then(|| numbering.meaning(whole));
    };
    let words: Vec<Word<'_>> = words.iter().map(|word| Word::new(word)).collect();
    let own = numbering.all();
    let mut names = own.iter().map(|at| all[*at].name);
    let first = names.next();
    let alike = names.all(|name| Some(name) == first);
    let is_unclear = |word: &Word<'_>| match word {
        // NVML does not tell the instances to everyone.
        Word::Instance(Mig::Uuid(_)) => word.gpu(&[], all).is_none(),
        _ => word.has_number() && !alike && !cuda.by_bus,
    };
    // Report one too many rather than one too few.
    if words.iter().any(is_unclear) {
        return Some(Meaning::one_of(own));
    }
    Some(numbering.meaning(|order| {
        // CUDA ignores everything after a GPU that does not exist.
        let gpus = words.iter().map_while(|word| word.gpu(order, all));
        let gpus: Vec<usize> = gpus.collect();
        Named {
            all_exist: gpus.len() == words.len(),
            gpus: gpus.into_iter().collect(),
        }
    }))
}

impl Cuda {
    /// Whether an instance on a visible GPU is visible.
    pub(super) fn instance(&self, gpu: &Candidate<'_>, instance: &MigNames) -> bool {
        let cuda = self.words.as_deref().unwrap_or_default();
        [cuda, &self.container].iter().all(|words| {
            let words = words.iter().map(|word| Word::new(word));
            let named = words.filter_map(|word| match word {
                Word::Instance(mig) => Some(mig),
                Word::Number(_) | Word::Gpu(_) => None,
            });
            let mut named = named.peekable();
            named.peek().is_none() || named.any(|mig| mig.is(gpu, instance))
        })
    }
}

impl Mig<'_> {
    fn is(&self, gpu: &Candidate<'_>, instance: &MigNames) -> bool {
        match *self {
            Self::Uuid(uuid) => instance.uuid.starts_with(uuid),
            Self::Ids(uuid, gpu_instance, compute_instance) => {
                gpu.uuid.is_some_and(|gpu| gpu.starts_with(uuid))
                    && instance.gpu_instance == Some(gpu_instance)
                    && instance.compute_instance == Some(compute_instance)
            }
            // The GPU is visible.
            Self::Numbers(_, number) => instance.number == number,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::super::numbering::Share, *};

    /// GPUs that an environment means, and whether that is certain.
    fn seen(environment: &str, all: &[Candidate<'_>]) -> (Vec<usize>, bool) {
        seen_with(DeviceAccess::default(), environment, all)
    }

    fn seen_with(
        access: DeviceAccess,
        environment: &str,
        all: &[Candidate<'_>],
    ) -> (Vec<usize>, bool) {
        let environment = environment.replace(' ', "\0");
        let variables = Variables::new(environment.as_bytes());
        let known = Known {
            selection: Cuda::of_environment(&variables, &access),
            share: Share::new(&variables, access),
        };
        let Some(meaning) = gpus(&known, all) else {
            return ((0..all.len()).collect(), true);
        };
        (meaning.gpus.into_iter().collect(), meaning.is_certain)
    }

    fn candidates(names: [&'static str; 3]) -> [Candidate<'static>; 3] {
        let uuids = ["GPU-aa11", "GPU-aa22", "GPU-bb33"];
        [0, 1, 2].map(|at| Candidate {
            minor: u32::try_from(at).ok(),
            uuid: Some(uuids[at]),
            name: Some(names[at]),
            instances: Vec::new(),
        })
    }

    #[test]
    fn gpus_are_selected_by_number_and_uuid() {
        let alike = candidates(["A100"; 3]);
        for (list, expected) in [
            ("", vec![]),
            ("-1", vec![]),
            ("2, 0", vec![0, 2]),
            ("1,7,0", vec![1]),
            ("0,-1,1", vec![0]),
            ("GPU-bb,GPU-aa22", vec![1, 2]),
            ("GPU-cc", vec![]),
        ] {
            let environment = format!("CUDA_VISIBLE_DEVICES={}", list.replace(' ', ""));
            assert_eq!(seen(&environment, &alike), (expected, true), "{list:?}");
        }
        assert_eq!(seen("HOME=/", &alike), (vec![0, 1, 2], true));
        // NVML does not tell the instances.
        let unknown = seen("CUDA_VISIBLE_DEVICES=MIG-1", &alike);
        assert_eq!(unknown, (vec![0, 1, 2], false));
    }

    #[test]
    fn numbers_of_different_gpus_need_an_order() {
        let unlike = candidates(["T4", "T4", "A100"]);
        let by_speed = (vec![0, 1, 2], false);
        assert_eq!(seen("CUDA_VISIBLE_DEVICES=0", &unlike), by_speed);
        let fastest = "CUDA_VISIBLE_DEVICES=0 CUDA_DEVICE_ORDER=FASTEST_FIRST";
        assert_eq!(seen(fastest, &unlike), by_speed);
        let by_bus = "CUDA_VISIBLE_DEVICES=0 CUDA_DEVICE_ORDER=PCI_BUS_ID";
        assert_eq!(seen(by_bus, &unlike), (vec![0], true));
        let uuid = "CUDA_VISIBLE_DEVICES=GPU-bb";
        assert_eq!(seen(uuid, &unlike), (vec![2], true));
        // Only the order of the GPUs of the process matters.
        let given = "CUDA_VISIBLE_DEVICES=0 SLURM_JOB_GPUS=1";
        assert_eq!(seen(given, &unlike), (vec![1], true));
        let given = "CUDA_VISIBLE_DEVICES=0 SLURM_JOB_GPUS=1,2";
        assert_eq!(seen(given, &unlike), (vec![1, 2], false));
    }

    #[test]
    fn numbers_count_the_gpus_that_slurm_gave() {
        let alike = candidates(["A100"; 3]);
        for (environment, expected) in [
            ("SLURM_JOB_GPUS=1", (vec![1], true)),
            ("SLURM_JOB_GPUS=1 CUDA_VISIBLE_DEVICES=0", (vec![1], true)),
            ("SLURM_JOB_GPUS=1 CUDA_VISIBLE_DEVICES=1", (vec![1], true)),
            ("SLURM_JOB_GPUS=1 CUDA_VISIBLE_DEVICES=", (vec![], true)),
            (
                "SLURM_JOB_GPUS=1,2 CUDA_VISIBLE_DEVICES=1",
                (vec![1, 2], false),
            ),
            // A UUID has one meaning.
            (
                "SLURM_JOB_GPUS=1,2 CUDA_VISIBLE_DEVICES=GPU-aa22",
                (vec![1], true),
            ),
        ] {
            assert_eq!(seen(environment, &alike), expected, "{environment}");
        }
    }

    #[test]
    fn instances_select_their_gpu() {
        let mut all = candidates(["H100"; 3]);
        let instance = |number: u32, uuid: &str| MigNames {
            number,
            uuid: uuid.to_owned(),
            gpu_instance: Some(7 + number),
            compute_instance: Some(0),
        };
        all[1].instances = vec![instance(0, "MIG-11"), instance(1, "MIG-12")];
        all[2].instances = vec![instance(0, "MIG-21"), instance(1, "MIG-22")];
        let instances = |access: &DeviceAccess, environment: &str, gpus: &[usize]| {
            let environment = environment.replace(' ', "\0");
            let variables = Variables::new(environment.as_bytes());
            let cuda = Cuda::of_environment(&variables, access);
            let mut found = Vec::new();
            for at in gpus {
                let all_of_gpu = all[*at].instances.iter();
                found.extend(all_of_gpu.filter(|instance| {
                    let mut selections = cuda.iter();
                    selections.all(|cuda| cuda.instance(&all[*at], instance))
                }));
            }
            found
                .iter()
                .map(|found| &found.uuid[..])
                .collect::<Vec<_>>()
        };
        let node = DeviceAccess::default();
        for (list, gpus, expected) in [
            ("MIG-12", vec![1], vec!["MIG-12"]),
            ("MIG-GPU-bb33/8/0", vec![2], vec!["MIG-22"]),
            ("MIG-GPU-bb33/9/0", vec![2], vec![]),
            ("2:0", vec![2], vec!["MIG-21"]),
            ("MIG-11,2:1", vec![1, 2], vec!["MIG-11", "MIG-12", "MIG-22"]),
            ("2", vec![2], vec!["MIG-21", "MIG-22"]),
            // Slurm counts instances: its numbers are no GPUs.
            ("MIG-21 SLURM_JOB_GPUS=2", vec![2], vec!["MIG-21"]),
            // Of a shell, from which a container can be started.
            (
                "2 NVIDIA_VISIBLE_DEVICES=MIG-21",
                vec![2],
                vec!["MIG-21", "MIG-22"],
            ),
        ] {
            let environment = format!("CUDA_VISIBLE_DEVICES={list}");
            assert_eq!(seen(&environment, &all), (gpus.clone(), true), "{list}");
            assert_eq!(instances(&node, &environment, &gpus), expected, "{list}");
        }
        let container = DeviceAccess::to_files([(NVIDIA, 2)]);
        for (environment, expected) in [
            ("NVIDIA_VISIBLE_DEVICES=MIG-21", vec!["MIG-21"]),
            ("NVIDIA_VISIBLE_DEVICES=MIG-GPU-bb33/8/0", vec!["MIG-22"]),
            ("NVIDIA_VISIBLE_DEVICES=2:1", vec!["MIG-22"]),
            (
                "NVIDIA_VISIBLE_DEVICES=2:1 CUDA_VISIBLE_DEVICES=0",
                vec!["MIG-22"],
            ),
            ("NVIDIA_VISIBLE_DEVICES=all", vec!["MIG-21", "MIG-22"]),
            ("HOME=/", vec!["MIG-21", "MIG-22"]),
        ] {
            let seen = seen_with(container.clone(), environment, &all);
            assert_eq!(seen, (vec![2], true), "{environment}");
            assert_eq!(
                instances(&container, environment, &[2]),
                expected,
                "{environment}"
            );
        }
        // The second device in the list of Slurm is an instance of the first GPU.
        assert_eq!(seen("SLURM_JOB_GPUS=1", &all), (vec![0, 1, 2], true));
    }
}
