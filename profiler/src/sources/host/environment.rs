//! Environment variables that describe the placement of the job. Only listed variables are stored,
//! because an environment contains secrets.

use std::{collections::BTreeMap, ffi::OsString};

use super::secrets::{hidden, is_secret};

/// Prefixes of names: batch systems, OpenMP, process managers, Open MPI and MVAPICH.
const PREFIXES: [&str; 12] = [
    "SLURM_",
    "PBS_",
    "OAR_",
    "FLUX_",
    "LSB_",
    "OMP_",
    "KMP_",
    "GOMP_",
    "OMPI_COMM_WORLD_",
    "PMI_",
    "MV2_COMM_WORLD_",
    "PALS_",
];

/// Complete names.
const NAMES: [&str; 24] = [
    "ALPS_APP_PE",
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "JSM_NAMESPACE_LOCAL_RANK",
    "JSM_NAMESPACE_RANK",
    "JSM_NAMESPACE_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MKL_NUM_THREADS",
    "MPI_LOCALNRANKS",
    "MPI_LOCALRANKID",
    "NUMEXPR_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "PMIX_NAMESPACE",
    "PMIX_RANK",
    "RANK",
    "ROCR_VISIBLE_DEVICES",
    "WORLD_SIZE",
    "ZE_AFFINITY_MASK",
    "ZE_ENABLE_PCI_ID_DEVICE_ORDER",
    "ZE_FLAT_DEVICE_HIERARCHY",
    "NVIDIA_VISIBLE_DEVICES",
];

/// The listed variables, except those whose name indicates a secret.
pub(super) fn allowed(
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> BTreeMap<String, String> {
    let variables = variables.filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        let listed =
            NAMES.contains(&&name[..]) || PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        (listed && !is_secret(&name)).then(|| (name, hidden(&value.to_string_lossy())))
    });
    variables.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_variables_without_secrets_are_stored() {
        let variables = [
            ("SLURM_JOB_ID", "42"),
            ("SLURM_JWT", "eyJhbGciOi"),
            ("SLURM_EXPORT_ENV", "ALL,DB_PASSWORD=abc"),
            ("PMI_SHARED_SECRET", "1"),
            ("PBS_JOBCOOKIE", "1"),
            ("FLUX_curve_key", "1"),
            ("OMP_NUM_THREADS", "8"),
            ("RANK", "3"),
            ("AWS_SECRET_ACCESS_KEY", "1"),
            ("PATH", "/bin"),
            ("XSLURM_JOB_ID", "1"),
            ("slurm_x", "1"),
        ];
        let found = allowed(
            variables
                .into_iter()
                .map(|(name, value)| (name.into(), value.into())),
        );
        let found: Vec<_> = found
            .iter()
            .map(|(name, value)| (&name[..], &value[..]))
            .collect();
        assert_eq!(
            found,
            [
                ("OMP_NUM_THREADS", "8"),
                ("RANK", "3"),
                ("SLURM_EXPORT_ENV", "ALL,DB_PASSWORD=***"),
                ("SLURM_JOB_ID", "42"),
            ]
        );
    }
}
