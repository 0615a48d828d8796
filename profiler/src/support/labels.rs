//! Labels of a run: `KEY=VALUE` pairs that the user chooses, stored with the data.

use std::{collections::BTreeMap, str::FromStr};

use serde::{Deserialize, Serialize, Serializer};
use thiserror::Error;

/// Limits of the number of labels, and of the bytes of a key and of a value.
const LABELS_MAX: usize = 64;
const KEY_MAX: usize = 64;
const VALUE_MAX: usize = 1024;

/// Labels in the order of their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Labels(pub BTreeMap<String, String>);

/// Why a text is not a list of labels.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum LabelError {
    /// No `=`.
    #[error("`{0}` is not a label: write KEY=VALUE")]
    Malformed(String),
    /// Characters that some of the formats cannot store.
    #[error(
        "`{0}` cannot be the key of a label: letters, digits and _ . - are allowed, up to \
         {KEY_MAX} characters, beginning with a letter or _"
    )]
    Key(String),
    /// Control characters, or too long.
    #[error("the value of label {0} has control characters or is longer than {VALUE_MAX} bytes")]
    Value(String),
    /// More than the limit.
    #[error("more than {LABELS_MAX} labels")]
    TooMany,
}

impl FromStr for Labels {
    type Err = LabelError;

    /// Parses `KEY=VALUE`, or several of them separated by commas. Text after a comma that is not
    /// the begin of a label is part of the value before it.
    fn from_str(text: &str) -> Result<Self, LabelError> {
        let mut labels: Vec<(String, String)> = Vec::new();
        for part in text.split(',') {
            match (part.split_once('='), labels.last_mut()) {
                (Some((key, value)), _) if is_key(key.trim()) => {
                    labels.push((key.trim().to_owned(), value.to_owned()));
                }
                (_, Some((_, value))) => {
                    value.push(',');
                    value.push_str(part);
                }
                (Some((key, _)), None) => return Err(LabelError::Key(key.trim().to_owned())),
                (None, None) => return Err(LabelError::Malformed(part.to_owned())),
            }
        }
        for (key, value) in &labels {
            if value.len() > VALUE_MAX || value.chars().any(char::is_control) {
                return Err(LabelError::Value(key.clone()));
            }
        }
        Self(labels.into_iter().collect()).limited()
    }
}

impl Labels {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All labels of several lists; the last value of a key counts.
    ///
    /// # Errors
    ///
    /// When there are too many.
    pub fn merged<'a>(lists: impl IntoIterator<Item = &'a Self>) -> Result<Self, LabelError> {
        let all = lists.into_iter().flat_map(|list| list.0.clone());
        Self(all.collect()).limited()
    }

    fn limited(self) -> Result<Self, LabelError> {
        if self.0.len() > LABELS_MAX {
            return Err(LabelError::TooMany);
        }
        Ok(self)
    }
}

fn is_key(text: &str) -> bool {
    let first = text.bytes().next();
    first.is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && text.len() <= KEY_MAX
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

/// Serializes all lists as one object.
///
/// # Errors
///
/// Those of the serializer.
pub fn as_one<S: Serializer>(lists: &[Labels], serializer: S) -> Result<S::Ok, S::Error> {
    let all: BTreeMap<_, _> = lists.iter().flat_map(|list| &list.0).collect();
    all.serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<(String, String)>, LabelError> {
        text.parse::<Labels>()
            .map(|labels| labels.0.into_iter().collect())
    }

    #[test]
    fn lists_are_split_before_keys() {
        let owned = |list: &[(&str, &str)]| {
            let owned = list
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            Ok(owned.collect())
        };
        assert_eq!(parse("env=prod"), owned(&[("env", "prod")]));
        assert_eq!(parse("b=2, a=1"), owned(&[("a", "1"), ("b", "2")]));
        assert_eq!(parse("a=x,y,b=z=1"), owned(&[("a", "x,y"), ("b", "z=1")]));
        assert_eq!(parse("a="), owned(&[("a", "")]));
        assert_eq!(parse("a=1,a=2"), owned(&[("a", "2")]));
    }

    #[test]
    fn invalid_labels_are_rejected() {
        assert_eq!(parse("env"), Err(LabelError::Malformed("env".to_owned())));
        for key in ["", "1a", "a b", "ä", &"k".repeat(KEY_MAX + 1)] {
            let text = format!("{key}=1");
            assert_eq!(parse(&text), Err(LabelError::Key(key.to_owned())), "{text}");
        }
        for value in ["\n", "\u{9b}", &"v".repeat(VALUE_MAX + 1)] {
            let text = format!("a={value}");
            assert_eq!(
                parse(&text),
                Err(LabelError::Value("a".to_owned())),
                "{text}"
            );
        }
        let many: Vec<_> = (0..=LABELS_MAX)
            .map(|number| format!("k{number}="))
            .collect();
        assert_eq!(parse(&many.join(",")), Err(LabelError::TooMany));
    }
}
