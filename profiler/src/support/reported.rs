//! Messages that are reported once.

use std::collections::HashSet;

/// The messages reported so far, limited in number.
#[derive(Debug, Default)]
pub(crate) struct ReportedOnce(HashSet<String>);

impl ReportedOnce {
    const MAX: usize = 1000;

    /// Whether `message` is to be reported now: it is new, and the limit is not reached.
    pub(crate) fn insert(&mut self, message: &str) -> bool {
        let is_new = self.0.len() < Self::MAX && !self.0.contains(message);
        if is_new {
            self.0.insert(message.to_owned());
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_is_reported_once() {
        let mut reported = ReportedOnce::default();
        assert!(reported.insert("a") && !reported.insert("a") && reported.insert("b"));
        let more = (0..2 * ReportedOnce::MAX).filter(|n| reported.insert(&n.to_string()));
        assert_eq!(more.count(), ReportedOnce::MAX - 2);
    }
}
