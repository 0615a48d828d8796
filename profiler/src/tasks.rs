//! The processes of the target, as of the last tick.

/// The processes of the target, read once per tick for all sources.
#[derive(Debug, Default)]
pub struct TaskTable {}
