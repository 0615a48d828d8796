//! Regions that have started and not ended, with their limits.

use std::sync::Arc;

use hashbrown::HashMap;
use serde_json::{Map, Value};

use super::roots::Snapshot;
use crate::{
    marks::{
        Mark, Received,
        quota::{Amount, Limits, Quota},
    },
    tasks::process_tree::ProcessKey,
};

/// Limit of open regions per process.
const OPEN_PER_PROCESS: usize = 4096;

/// Limits of open regions per user, and of their memory.
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

#[derive(Debug)]
pub struct OpenRegion {
    /// Number in the run.
    pub number: u64,
    /// Fields of its start, with which those of its end are merged.
    pub mark: Mark,
    /// Wall clock of its start, ns.
    pub start: i64,
    /// Number of the enclosing region.
    pub parent: Option<u64>,
    /// Resources that its process had used at its start.
    pub from: Arc<Snapshot>,
    /// User of the process that started it.
    pub uid: u32,
    bytes: usize,
}

/// All open regions by process, in the order of their starts.
#[derive(Debug)]
pub struct OpenRegions {
    regions: HashMap<ProcessKey, Vec<OpenRegion>>,
    quota: Quota,
}

impl Default for OpenRegions {
    fn default() -> Self {
        Self {
            regions: HashMap::new(),
            quota: Quota::new(OPEN),
        }
    }
}

impl OpenRegions {
    /// Whether a process of this user may open another region.
    pub fn has_room(&self, process: ProcessKey, uid: u32) -> bool {
        self.regions.get(&process).map_or(0, Vec::len) < OPEN_PER_PROCESS
            && self.quota.has_room(uid)
    }

    /// Opens a region.
    pub fn open(
        &mut self,
        process: ProcessKey,
        number: u64,
        received: &Received,
        start: i64,
        parent: Option<u64>,
        from: Arc<Snapshot>,
    ) {
        let (uid, bytes) = (received.uid, received.bytes + size_of::<OpenRegion>());
        self.quota.add(uid, bytes);
        self.regions.entry(process).or_default().push(OpenRegion {
            number,
            mark: received.mark.clone(),
            start,
            parent,
            from,
            uid,
            bytes,
        });
    }

    /// The innermost region of a process with this identifier.
    pub fn by_id(&self, process: ProcessKey, id: &str) -> Option<&OpenRegion> {
        let mut own = self.regions.get(&process)?.iter().rev();
        own.find(|open| open.mark.id.as_deref() == Some(id))
    }

    /// Removes the region that a mark ends: that with its identifier, with its name, or the
    /// innermost.
    pub fn end(&mut self, process: ProcessKey, end: &Mark) -> Option<OpenRegion> {
        let own = self.regions.get_mut(&process)?;
        let index = own.iter().rposition(|open| match (&end.id, &end.name) {
            (Some(id), _) => open.mark.id.as_ref() == Some(id),
            (None, Some(name)) => open.mark.name.as_ref() == Some(name),
            (None, None) => true,
        })?;
        let mut open = own.remove(index);
        if own.is_empty() {
            self.regions.remove(&process);
        }
        self.quota.remove(open.uid, open.bytes);
        open.mark.merge(end);
        Some(open)
    }

    /// Removes all regions of a process.
    pub fn end_all(&mut self, process: ProcessKey) -> Vec<OpenRegion> {
        let own = self.regions.remove(&process).unwrap_or_default();
        for open in &own {
            self.quota.remove(open.uid, open.bytes);
        }
        own
    }

    /// Processes with open regions.
    pub fn processes(&self) -> impl Iterator<Item = ProcessKey> {
        self.regions.keys().copied()
    }

    /// Whether a process has open regions.
    pub fn any_of(&self, process: ProcessKey) -> bool {
        self.regions.contains_key(&process)
    }
}

impl Mark {
    /// Merges the fields of the end of a region.
    fn merge(&mut self, later: &Self) {
        self.attrs.extend(later.attrs.clone());
        merge_json(&mut self.used, later.used.as_ref());
        merge_json(&mut self.generated, later.generated.as_ref());
        merge_json(&mut self.tags, later.tags.as_ref());
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

/// Appends to lists, merges objects, and replaces other values.
fn merge_json(old: &mut Option<Value>, new: Option<&Value>) {
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

    fn opened(marks: &[&str]) -> OpenRegions {
        let mut regions = OpenRegions::default();
        for (number, text) in (1..).zip(marks) {
            regions.open(PROCESS, number, &mark(text), 0, None, Arc::default());
        }
        regions
    }

    fn end(regions: &mut OpenRegions, text: &str) -> Option<u64> {
        Some(regions.end(PROCESS, &mark(text).mark)?.number)
    }

    #[test]
    fn an_end_selects_by_identifier_name_or_nesting() {
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
    fn an_end_is_merged_with_its_start() {
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
    fn open_regions_are_limited() {
        let mut regions = OpenRegions::default();
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
        // Four processes of a user reach the limit; other users have their own.
        for user in 0..4 {
            for process in 0..4 {
                assert_eq!(open(8 * user + process, user), 4096);
            }
            assert_eq!(open(8 * user + 4, user), 0);
        }
        assert_eq!(open(99, 99), 256);
    }
}
