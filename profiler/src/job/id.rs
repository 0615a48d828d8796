//! Job ids of each scheduler: their syntax, and which spellings mean the same job.

use super::Scheduler;

/// Whether `text` can be a job id. It becomes an argument of the scheduler's commands.
pub fn is_id(text: &str) -> bool {
    let fits = |c: char| c.is_alphanumeric() || "._-+[]:@\\".contains(c);
    (1..=128).contains(&text.len()) && !text.starts_with('-') && text.chars().all(fits)
}

/// Run id of a job, the same on all its nodes: `slurm-4711`. Characters that are not usable in a
/// directory name become `_`.
pub fn run_id(scheduler: Scheduler, id: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "._-+[]".contains(c);
    let id: String = id.chars().map(|c| if plain(c) { c } else { '_' }).collect();
    format!("{}-{id}", scheduler.name().to_lowercase())
}

/// Whether `text` can be a step of a Slurm job: a number, or the name of a step without one.
pub fn is_step(text: &str) -> bool {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number || ["batch", "extern", "interactive"].contains(&text)
}

/// Whether two ids of a scheduler mean the same job.
pub fn is_same_job(scheduler: Scheduler, one: &str, other: &str) -> bool {
    match scheduler {
        Scheduler::Pbs => is_same_pbs_job(one, other),
        Scheduler::Slurm | Scheduler::Oar | Scheduler::Flux | Scheduler::None => one == other,
    }
}

/// The name of the server is optional: `7` and `7.server` mean the same job.
fn is_same_pbs_job(one: &str, other: &str) -> bool {
    let (number, server) = one.split_once('.').unwrap_or((one, ""));
    let (other_number, other_server) = other.split_once('.').unwrap_or((other, ""));
    number == other_number
        && (server.is_empty() || other_server.is_empty() || server == other_server)
}

/// The spelling of an id that is used in cgroup paths and in the data.
pub fn normalized(scheduler: Scheduler, id: &str) -> String {
    let flux = (scheduler == Scheduler::Flux).then(|| flux_id(id));
    flux.flatten().unwrap_or_else(|| id.to_owned())
}

/// A Flux job id in base 58 with the prefix `f`, which Flux can print as `ƒ`.
pub fn flux_id(id: &str) -> Option<String> {
    let digits = id.strip_prefix(['f', 'ƒ'])?;
    let digit = |byte: u8| byte.is_ascii_alphanumeric() && !b"0OIl".contains(&byte);
    (!digits.is_empty() && digits.bytes().all(digit)).then(|| format!("f{digits}"))
}

/// Whether `name` is a SLUID of Slurm: `s` and 13 digits of Crockford's base 32, which excludes I,
/// L, O and U.
pub fn is_sluid(name: &str) -> bool {
    let digit =
        |byte: u8| byte.is_ascii_digit() || byte.is_ascii_uppercase() && !b"ILOU".contains(&byte);
    name.len() == 14 && name.starts_with('s') && name.bytes().skip(1).all(digit)
}

/// Name of a systemd scope or service without its suffix.
pub fn unit_stem(name: &str) -> Option<&str> {
    name.strip_suffix(".scope")
        .or_else(|| name.strip_suffix(".service"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_checked() {
        for id in [
            "7",
            "7.server",
            "12_3",
            "7[2].server",
            "ƒ2Rt",
            "s5K1KKYAYG5D00",
            "run-u1.service",
        ] {
            assert!(is_id(id), "{id}");
        }
        for invalid in ["", "-7", "a b", "a/b", "7;x", "$x", &"7".repeat(129)] {
            assert!(!is_id(invalid), "{invalid}");
        }
    }

    #[test]
    fn steps_are_checked() {
        for step in ["0", "17", "batch", "interactive"] {
            assert!(is_step(step), "{step}");
        }
        for invalid in ["", "-1", "7.0", "0/..", "x"] {
            assert!(!is_step(invalid), "{invalid}");
        }
    }

    #[test]
    fn server_of_pbs_is_optional() {
        assert!(is_same_job(Scheduler::Pbs, "7.server", "7"));
        assert!(!is_same_job(Scheduler::Pbs, "7.server", "7.other"));
        assert!(!is_same_job(Scheduler::Slurm, "7.server", "7"));
    }

    #[test]
    fn flux_ids_are_normalized() {
        assert_eq!(flux_id("ƒ2Rt").as_deref(), Some("f2Rt"));
        for invalid in ["f", "f0", "2Rt"] {
            assert_eq!(flux_id(invalid), None);
        }
        assert_eq!(normalized(Scheduler::Flux, "ƒ2Rt"), "f2Rt");
        assert_eq!(normalized(Scheduler::Flux, "7"), "7");
        assert_eq!(normalized(Scheduler::Slurm, "ƒ2Rt"), "ƒ2Rt");
    }
}
