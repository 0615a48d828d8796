//! What applications say of themselves: marks, one JSON object per datagram, on the socket in `$PROFILER_SOCKET`.
//!
//! The grammar is in `docs/regions.md`. What the marks mean is decided by the source `region`.

mod losses;
pub mod quota;
mod rates;
mod receive;
mod receiver;
mod socket;

use serde::Deserialize;
use serde_json::{Map, Value};

pub use self::{
    losses::{Loss, Losses},
    receiver::{MarkReceiver, Received, Wanted},
};

/// Variable of a started command's environment: path of the socket.
pub const VARIABLE: &str = "PROFILER_SOCKET";

/// Largest mark in bytes.
pub const MAX_BYTES: usize = 8 << 10;

/// What a mark does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// A region begins.
    Start,
    /// A region ends.
    End,
    /// Something happens.
    Event,
    /// A region of known length ends now.
    Phase,
    /// A value is told.
    Gauge,
}

/// One mark, as it was sent.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Mark {
    /// What it does.
    pub op: Op,
    /// Of the region, event, phase or gauge.
    #[serde(default)]
    pub name: Option<String>,
    /// Chosen by the application; a number is taken as its digits.
    #[serde(default, deserialize_with = "text_or_number")]
    pub id: Option<String>,
    /// `id` of the region that this one is part of.
    #[serde(default, deserialize_with = "text_or_number")]
    pub parent: Option<String>,
    /// Regions that belong together.
    #[serde(default)]
    pub group: Option<String>,
    /// Which kind of thing it is, in the application's words.
    #[serde(default)]
    pub kind: Option<String>,
    /// How a region ended.
    #[serde(default)]
    pub status: Option<String>,
    /// Anything else; fields that are not known are added.
    #[serde(default, alias = "attributes")]
    pub attrs: Map<String, Value>,
    /// What was read.
    #[serde(default)]
    pub used: Option<Value>,
    /// What was made.
    #[serde(default)]
    pub generated: Option<Value>,
    /// Words.
    #[serde(default)]
    pub tags: Option<Value>,
    /// Length of a phase.
    #[serde(default)]
    pub seconds: Option<f64>,
    /// Of a gauge.
    #[serde(default)]
    pub value: Option<f64>,
    /// Of `value`.
    #[serde(default)]
    pub unit: Option<String>,
    /// The process that the mark is of, if not the sender.
    #[serde(default)]
    pub pid: Option<u32>,
    /// Marks that the sender could not send since the last one that it could.
    #[serde(default)]
    pub dropped: u64,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

impl Mark {
    /// Reads a datagram.
    ///
    /// # Errors
    ///
    /// What is wrong with it, in words for its author.
    pub fn parse(datagram: &[u8]) -> Result<Self, String> {
        let mut mark: Self = serde_json::from_slice(datagram).map_err(|error| error.to_string())?;
        let named = mark.name.as_ref().is_some_and(|name| !name.is_empty());
        let missing = match mark.op {
            Op::Start | Op::Event | Op::Phase | Op::Gauge if !named => Some("name"),
            Op::Phase if mark.seconds.is_none() => Some("seconds"),
            Op::Gauge if mark.value.is_none() => Some("value"),
            _ => None,
        };
        if let Some(field) = missing {
            return Err(format!("no `{field}`"));
        }
        if mark.op == Op::Phase && !mark.seconds.is_some_and(|length| length >= 0.0) {
            return Err("`seconds` is negative".to_owned());
        }
        for (name, value) in std::mem::take(&mut mark.rest) {
            mark.attrs.entry(name).or_insert(value);
        }
        Ok(mark)
    }
}

impl Mark {
    /// Memory that it takes beyond its own size, bytes: as JSON in memory, a text takes a multiple of its length.
    pub fn memory(&self) -> usize {
        let texts = [
            &self.name,
            &self.id,
            &self.parent,
            &self.group,
            &self.kind,
            &self.status,
            &self.unit,
        ];
        let texts: usize = texts.into_iter().flatten().map(String::capacity).sum();
        let values = [&self.used, &self.generated, &self.tags];
        let values: usize = values.into_iter().flatten().map(memory_of).sum();
        texts + values + memory_of_object(&self.attrs)
    }
}

fn memory_of(value: &Value) -> usize {
    match value {
        Value::String(text) => text.capacity(),
        Value::Array(items) => {
            let inner: usize = items.iter().map(memory_of).sum();
            items.capacity() * size_of::<Value>() + inner
        }
        Value::Object(members) => memory_of_object(members),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// A node of a `BTreeMap` has room for eleven members, and at least five are in it unless it is the only one.
fn memory_of_object(members: &Map<String, Value>) -> usize {
    const NODE: usize = 11 * (size_of::<String>() + size_of::<Value>()) + 64;
    let inner = members.iter();
    let inner: usize = inner
        .map(|(name, value)| name.capacity() + memory_of(value))
        .sum();
    members.len().div_ceil(5) * NODE + inner
}

fn text_or_number<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    match Value::deserialize(from)? {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text)),
        Value::Number(number) => Ok(Some(number.to_string())),
        other => Err(serde::de::Error::custom(format!(
            "an id is a text or a number, not {other}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = r#"{"op":"start","name":"fit","id":7,"parent":"a","group":"g","kind":"k","attrs":{"n":1},
        "used":["in"],"generated":{"out":2},"tags":["t"],"pid":12,"dropped":3,"color":"red","n":2}"#;

    #[test]
    fn everything_that_a_mark_can_say() {
        let mark = Mark::parse(FULL.as_bytes()).unwrap();
        assert_eq!((mark.op, mark.name.as_deref()), (Op::Start, Some("fit")));
        assert_eq!(
            (mark.id.as_deref(), mark.parent.as_deref()),
            (Some("7"), Some("a"))
        );
        assert_eq!((mark.pid, mark.dropped), (Some(12), 3));
        // What is not known is kept; what was said explicitly goes first.
        let attributes = Value::Object(mark.attrs).to_string();
        assert_eq!(attributes, r#"{"color":"red","n":1}"#);
    }

    #[test]
    fn what_is_missing_is_said() {
        for (mark, why) in [
            (r#"{"name":"x"}"#, "missing field `op`"),
            (r#"{"op":"begin","name":"x"}"#, "unknown variant `begin`"),
            (r#"{"op":"start"}"#, "no `name`"),
            (r#"{"op":"event","name":""}"#, "no `name`"),
            (r#"{"op":"phase","name":"x"}"#, "no `seconds`"),
            (r#"{"op":"phase","name":"x","seconds":-1}"#, "negative"),
            (r#"{"op":"gauge","name":"x"}"#, "no `value`"),
            (r#"{"op":"start","name":"x","id":[]}"#, "an id is"),
            ("[1]", "invalid"),
            ("", "EOF"),
        ] {
            let error = Mark::parse(mark.as_bytes()).unwrap_err();
            assert!(error.contains(why), "{mark}: {error}");
        }
        assert!(Mark::parse(br#"{"op":"end"}"#).is_ok());
    }

    #[test]
    fn memory_is_what_is_allocated() {
        let memory = |text: &str| Mark::parse(text.as_bytes()).unwrap().memory();
        assert!(memory(r#"{"op":"event","name":"x"}"#) < 10);
        // A multiple of 60 of its text.
        let objects = vec![r#"{"":0}"#; 1000].join(",");
        let many = memory(&format!(
            r#"{{"op":"event","name":"x","used":[{objects}]}}"#
        ));
        assert!((600_000..800_000).contains(&many), "{many}");
    }

    /// Whatever is cut off or changed, the answer is a mark or a reason.
    #[test]
    fn damaged_marks_are_refused_or_understood() {
        let bytes = FULL.as_bytes();
        for length in 0..bytes.len() {
            assert!(Mark::parse(&bytes[..length]).is_err());
        }
        for place in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.to_vec();
                damaged[place] ^= 1 << bit;
                let _ = Mark::parse(&damaged);
            }
        }
        // As deep as fits.
        let deep = [
            br#"{"op":"event","name":"x","used":"#,
            &[b'['; MAX_BYTES][..],
        ]
        .concat();
        assert!(Mark::parse(&deep).is_err());
    }
}
