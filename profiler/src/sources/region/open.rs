//! Regions that have begun and not ended.

use std::sync::Arc;

use hashbrown::HashMap;
use serde_json::{Map, Value};

use super::Snapshot;
use crate::{
    marks::{
        Mark, Received,
        quota::{Amount, Limits, Quota},
    },
    tasks::process_tree::ProcessKey,
};

/// Open regions of a process.
const MOST: usize = 4096;

/// Open regions of users, with the memory that they take.
const OPEN: Limits = Limits {
    user: Amount {
        count: 16_384,
        bytes: 32 << 20,
    },
    all: Amount {
        count: 65_536,
        bytes: 128 << 20,
    },
    reserve: Amount {
        count: 256,
        bytes: 1 << 20,
    },
};

/// A region that is open.
#[derive(Debug)]
pub struct Open {
    /// Its number in the run.
    pub number: u64,
    /// What was told of it so far.
    pub mark: Mark,
    /// When its start was sent, ns of wall clock.
    pub start: i64,
    /// Number of the region that it is part of.
    pub parent: Option<u64>,
    /// What its process had used at the reading at its start.
    pub from: Arc<Snapshot>,
    /// The user who opened it.
    pub uid: u32,
    bytes: usize,
}

/// All of them, by process, in the order in which they began.
#[derive(Debug)]
pub struct Regions {
    of: HashMap<ProcessKey, Vec<Open>>,
    quota: Quota,
}

impl Default for Regions {
    fn default() -> Self {
        Self {
            of: HashMap::new(),
            quota: Quota::new(OPEN),
        }
    }
}

impl Regions {
    /// Whether a user may open one more.
    pub fn has_room(&self, of: ProcessKey, uid: u32) -> bool {
        self.of.get(&of).map_or(0, Vec::len) < MOST && self.quota.has_room(uid)
    }

    /// Opens one.
    pub fn open(
        &mut self,
        of: ProcessKey,
        number: u64,
        received: &Received,
        start: i64,
        parent: Option<u64>,
        from: Arc<Snapshot>,
    ) {
        let (uid, bytes) = (received.uid, received.bytes + size_of::<Open>());
        self.quota.add(uid, bytes);
        self.of.entry(of).or_default().push(Open {
            number,
            mark: received.mark.clone(),
            start,
            parent,
            from,
            uid,
            bytes,
        });
    }

    /// The innermost with this identifier.
    pub fn by_id(&self, of: ProcessKey, id: &str) -> Option<&Open> {
        let mut own = self.of.get(&of)?.iter().rev();
        own.find(|open| open.mark.id.as_deref() == Some(id))
    }

    /// Ends the one that `end` means: by its identifier, by its name, or the innermost.
    pub fn end(&mut self, of: ProcessKey, end: &Mark) -> Option<Open> {
        let own = self.of.get_mut(&of)?;
        let place = own.iter().rposition(|open| match (&end.id, &end.name) {
            (Some(id), _) => open.mark.id.as_ref() == Some(id),
            (None, Some(name)) => open.mark.name.as_ref() == Some(name),
            (None, None) => true,
        })?;
        let mut open = own.remove(place);
        if own.is_empty() {
            self.of.remove(&of);
        }
        self.quota.remove(open.uid, open.bytes);
        open.mark.add(end);
        Some(open)
    }

    /// Takes out all of a process.
    pub fn end_all(&mut self, of: ProcessKey) -> Vec<Open> {
        let own = self.of.remove(&of).unwrap_or_default();
        for open in &own {
            self.quota.remove(open.uid, open.bytes);
        }
        own
    }

    /// Processes that have some.
    pub fn processes(&self) -> impl Iterator<Item = ProcessKey> {
        self.of.keys().copied()
    }

    /// Whether a process has any.
    pub fn any_of(&self, of: ProcessKey) -> bool {
        self.of.contains_key(&of)
    }
}

impl Mark {
    /// Adds what a later mark says of the same thing.
    fn add(&mut self, later: &Self) {
        self.attrs.extend(later.attrs.clone());
        merge(&mut self.used, later.used.as_ref());
        merge(&mut self.generated, later.generated.as_ref());
        merge(&mut self.tags, later.tags.as_ref());
        let replace = |old: &mut Option<String>, new: &Option<String>| {
            if new.is_some() {
                old.clone_from(new);
            }
        };
        replace(&mut self.status, &later.status);
        replace(&mut self.group, &later.group);
        replace(&mut self.kind, &later.kind);
    }
}

/// Lists and objects grow, all else is replaced.
fn merge(old: &mut Option<Value>, new: Option<&Value>) {
    match (old, new) {
        (Some(Value::Array(old)), Some(Value::Array(new))) => old.extend(new.iter().cloned()),
        (Some(Value::Object(old)), Some(Value::Object(new))) => {
            let new: &Map<_, _> = new;
            old.extend(new.clone());
        }
        (old, Some(new)) => *old = Some(new.clone()),
        (_, None) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROCESS: ProcessKey = (7, 1);

    fn mark(text: &str) -> Received {
        Received {
            mark: Mark::parse(text.as_bytes()).unwrap(),
            pid: PROCESS.0,
            uid: 0,
            at: 0,
            bytes: text.len(),
        }
    }

    fn opened(marks: &[&str]) -> Regions {
        let mut regions = Regions::default();
        for (number, text) in (1..).zip(marks) {
            regions.open(PROCESS, number, &mark(text), 0, None, Arc::default());
        }
        regions
    }

    fn end(regions: &mut Regions, text: &str) -> Option<u64> {
        Some(regions.end(PROCESS, &mark(text).mark)?.number)
    }

    #[test]
    fn an_end_means_an_identifier_a_name_or_the_innermost() {
        let mut regions = opened(&[
            r#"{"op":"start","name":"a","id":"x"}"#,
            r#"{"op":"start","name":"a"}"#,
            r#"{"op":"start","name":"b"}"#,
            r#"{"op":"start","name":"a","id":"y"}"#,
        ]);
        assert_eq!(end(&mut regions, r#"{"op":"end","id":"x"}"#), Some(1));
        assert_eq!(end(&mut regions, r#"{"op":"end","id":"x"}"#), None);
        assert_eq!(end(&mut regions, r#"{"op":"end","name":"a"}"#), Some(4));
        assert_eq!(end(&mut regions, r#"{"op":"end"}"#), Some(3));
        assert_eq!(end(&mut regions, r#"{"op":"end","name":"b"}"#), None);
        assert_eq!(regions.end_all(PROCESS).len(), 1);
        assert!(regions.quota.is_unused());
    }

    #[test]
    fn an_end_adds_to_what_the_start_said() {
        let mut regions = opened(&[
            r#"{"op":"start","name":"a","attrs":{"n":1,"m":1},"used":["i"],"generated":1,"tags":{"a":1}}"#,
        ]);
        let end = mark(
            r#"{"op":"end","attrs":{"n":2},"used":["j"],"generated":{"o":1},"tags":{"b":2},"status":"error"}"#,
        );
        let open = regions.end(PROCESS, &end.mark).unwrap();
        let text = |value: Option<Value>| value.unwrap().to_string();
        assert_eq!(
            Value::Object(open.mark.attrs).to_string(),
            r#"{"m":1,"n":2}"#
        );
        assert_eq!(text(open.mark.used), r#"["i","j"]"#);
        assert_eq!(text(open.mark.generated), r#"{"o":1}"#);
        assert_eq!(text(open.mark.tags), r#"{"a":1,"b":2}"#);
        assert_eq!(open.mark.status.as_deref(), Some("error"));
    }

    #[test]
    fn there_is_room_for_so_many() {
        let mut regions = Regions::default();
        let start = mark(r#"{"op":"start","name":"a"}"#);
        let mut open = |pid, uid| {
            let start = Received {
                uid,
                ..start.clone()
            };
            let room = |_: &u32| {
                let room = regions.has_room((pid, 1), uid);
                if room {
                    regions.open((pid, 1), 1, &start, 0, None, Arc::default());
                }
                room
            };
            (0..100_000).take_while(room).count()
        };
        // Four processes have all that their user may have; others have as much.
        for user in 0..4 {
            for process in 0..4 {
                assert_eq!(open(8 * user + process, user), 4096);
            }
            assert_eq!(open(8 * user + 4, user), 0);
        }
        assert_eq!(open(99, 99), 256);
    }
}
