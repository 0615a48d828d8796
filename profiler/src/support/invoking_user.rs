//! The user who started the profiler, before sudo.

/// User and group that new files are given to; `None` leaves that to the kernel.
pub type Owner = Option<(u32, u32)>;

/// uid and gid of the user who called sudo; `None` without sudo.
pub fn sudo_ids() -> Owner {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let id = |name| std::env::var(name).ok()?.parse().ok();
    Some((id("SUDO_UID")?, id("SUDO_GID")?))
}

/// uid of the user who called sudo, otherwise of this process; `None` for root without sudo.
pub fn non_root_uid() -> Option<u32> {
    let own = rustix::process::getuid();
    if own.is_root() {
        sudo_ids().map(|(uid, _)| uid)
    } else {
        Some(own.as_raw())
    }
}

/// uid of the user who called sudo, otherwise of this process.
pub fn uid() -> u32 {
    sudo_ids().map_or_else(|| rustix::process::getuid().as_raw(), |(uid, _)| uid)
}

/// Name of the user who called sudo, otherwise of this process's user; the uid if it has no name.
pub fn name() -> String {
    user_name(uid())
}

/// Name of a user; the uid if it has no name.
pub fn user_name(uid: u32) -> String {
    nix::unistd::User::from_uid(uid.into())
        .ok()
        .flatten()
        .map_or_else(|| uid.to_string(), |user| user.name)
}
