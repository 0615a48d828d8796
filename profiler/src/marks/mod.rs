//! Marks: messages of applications, one JSON object per datagram, sent to the socket in
//! `$PROFILER_SOCKET`.
//!
//! `docs/regions.md` defines the grammar; the source `region` interprets the marks.

mod clocks;
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
    receiver::{DueReading, MarkReceiver, Received},
};

/// Environment variable with the path of the socket, set for a started command.
pub const VARIABLE: &str = "PROFILER_SOCKET";

/// Largest mark in bytes.
pub const MAX_BYTES: usize = 8 << 10;

/// Kind of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// A region begins.
    Start,
    /// A region ends.
    End,
    /// A point in time.
    Event,
    /// A region that ends now, with its duration in the mark.
    Phase,
    /// A value.
    Gauge,
}

/// The content of one mark.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Mark {
    /// Kind of the mark.
    pub op: Op,
    /// Name of the region, event, phase or gauge; required, except to end a region.
    #[serde(default)]
    pub name: Option<String>,
    /// Id of the region, chosen by the application; a number is stored as its digits.
    #[serde(default, deserialize_with = "text_or_number")]
    pub id: Option<String>,
    /// `id` of the enclosing region.
    #[serde(default, deserialize_with = "text_or_number")]
    pub parent: Option<String>,
    /// Group of related regions.
    #[serde(default)]
    pub group: Option<String>,
    /// Category, chosen by the application.
    #[serde(default)]
    pub kind: Option<String>,
    /// Outcome of a region.
    #[serde(default)]
    pub status: Option<String>,
    /// Other attributes; unknown fields are added.
    #[serde(default, alias = "attributes")]
    pub attrs: Map<String, Value>,
    /// Inputs.
    #[serde(default)]
    pub used: Option<Value>,
    /// Outputs.
    #[serde(default)]
    pub generated: Option<Value>,
    #[serde(default)]
    pub tags: Option<Value>,
    /// Duration of a phase.
    #[serde(default)]
    pub seconds: Option<f64>,
    /// Value of a gauge.
    #[serde(default)]
    pub value: Option<f64>,
    /// Unit of `value`.
    #[serde(default)]
    pub unit: Option<String>,
    /// The process that the mark describes; by default the sender.
    #[serde(default)]
    pub pid: Option<u32>,
    /// Marks that the sender could not send since the last successful one.
    #[serde(default)]
    pub dropped: u64,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

impl Mark {
    /// Parses a datagram.
    ///
    /// # Errors
    ///
    /// If it does not follow the grammar; the message is for the author of the mark.
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
    /// Allocated memory, bytes: JSON values in memory take a multiple of the length of their text.
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

/// A node of a `BTreeMap` holds up to eleven members, and at least five unless it is the root.
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
            "an id must be a string or a number, not {other}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = r#"{"op":"start","name":"fit","id":7,"parent":"a","group":"g","kind":"k","attrs":{"n":1},
        "used":["in"],"generated":{"out":2},"tags":["t"],"pid":12,"dropped":3,"color":"red","n":2}"#;

    #[test]
    fn all_fields_are_parsed() {
        let mark = Mark::parse(FULL.as_bytes()).unwrap();
        assert_eq!((mark.op, mark.name.as_deref()), (Op::Start, Some("fit")));
        assert_eq!(
            (mark.id.as_deref(), mark.parent.as_deref()),
            (Some("7"), Some("a"))
        );
        assert_eq!((mark.pid, mark.dropped), (Some(12), 3));
        // Unknown fields become attributes; explicit attributes take precedence.
        let attributes = Value::Object(mark.attrs).to_string();
        assert_eq!(attributes, r#"{"color":"red","n":1}"#);
    }

    #[test]
    fn errors_name_the_missing_field() {
        for (mark, why) in [
            (r#"{"name":"x"}"#, "missing field `op`"),
            (r#"{"op":"begin","name":"x"}"#, "unknown variant `begin`"),
            (r#"{"op":"start"}"#, "no `name`"),
            (r#"{"op":"event","name":""}"#, "no `name`"),
            (r#"{"op":"phase","name":"x"}"#, "no `seconds`"),
            (r#"{"op":"phase","name":"x","seconds":-1}"#, "negative"),
            (r#"{"op":"gauge","name":"x"}"#, "no `value`"),
            (r#"{"op":"start","name":"x","id":[]}"#, "an id must be"),
            ("[1]", "invalid"),
            ("", "EOF"),
        ] {
            let error = Mark::parse(mark.as_bytes()).unwrap_err();
            assert!(error.contains(why), "{mark}: {error}");
        }
        assert!(Mark::parse(br#"{"op":"end"}"#).is_ok());
    }

    #[test]
    fn memory_is_the_allocated_size() {
        let memory = |text: &str| Mark::parse(text.as_bytes()).unwrap().memory();
        assert!(memory(r#"{"op":"event","name":"x"}"#) < 10);
        // About 60 times the length of the text.
        let objects = vec![r#"{"":0}"#; 1000].join(",");
        let many = memory(&format!(
            r#"{{"op":"event","name":"x","used":[{objects}]}}"#
        ));
        assert!((600_000..800_000).contains(&many), "{many}");
    }

    #[test]
    fn damaged_marks_do_not_panic() {
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
        // Nested as deep as a datagram allows.
        let deep = [
            br#"{"op":"event","name":"x","used":"#,
            &[b'['; MAX_BYTES][..],
        ]
        .concat();
        assert!(Mark::parse(&deep).is_err());
    }
}
