//! Values of attributes as JSON.

use std::fmt::Write as _;

/// A value of an attribute. Numbers, `bool`, `&str` and `Option`s of them convert into it.
///
/// ```
/// profiler_mark::event("checkpoint")
///     .attr("epoch", 3)
///     .attr("loss", 0.25)
///     .attr("file", "model.pt")
///     .attr("shape", profiler_mark::Value::Json("[2,3]"))
///     .send();
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// An integer.
    Int(i64),
    /// An integer that can be larger than `i64::MAX`.
    Uint(u64),
    /// A number; `null` if it is not finite.
    Float(f64),
    /// A string.
    Text(&'a str),
    /// A text that is valid JSON. The profiler ignores a mark with invalid JSON.
    Json(&'a str),
}

impl Value<'_> {
    pub(crate) fn write(self, json: &mut String) {
        // Writing to a string cannot fail.
        let _ = match self {
            Self::Bool(value) => write!(json, "{value}"),
            Self::Int(value) => write!(json, "{value}"),
            Self::Uint(value) => write!(json, "{value}"),
            // `{:?}` writes an exponent instead of hundreds of digits.
            Self::Float(value) if value.is_finite() => write!(json, "{value:?}"),
            Self::Null | Self::Float(_) => write!(json, "null"),
            Self::Text(value) => {
                write_text(json, value);
                Ok(())
            }
            Self::Json(value) => write!(json, "{value}"),
        };
    }
}

/// Writes a JSON string.
pub fn write_text(json: &mut String, text: &str) {
    json.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => {
                json.push('\\');
                json.push(character);
            }
            '\0'..' ' => {
                let _ = write!(json, "\\u{:04x}", u32::from(character));
            }
            _ => json.push(character),
        }
    }
    json.push('"');
}

macro_rules! convert {
    ($($variant:ident: $($from:ty)*;)*) => {$($(
        impl From<$from> for Value<'_> {
            fn from(value: $from) -> Self {
                Self::$variant(value.into())
            }
        }
    )*)*};
}

convert! {
    Bool: bool;
    Int: i8 i16 i32 i64;
    Uint: u8 u16 u32 u64;
    Float: f32 f64;
}

impl From<isize> for Value<'_> {
    fn from(value: isize) -> Self {
        Self::Int(value as i64)
    }
}

impl From<usize> for Value<'_> {
    fn from(value: usize) -> Self {
        Self::Uint(value as u64)
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(value: &'a str) -> Self {
        Self::Text(value)
    }
}

impl<'a> From<&'a String> for Value<'a> {
    fn from(value: &'a String) -> Self {
        Self::Text(value)
    }
}

impl<T: Into<Self>> From<Option<T>> for Value<'_> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

#[cfg(test)]
mod tests {
    use super::Value;

    fn written<'a>(value: impl Into<Value<'a>>) -> String {
        let mut json = String::new();
        value.into().write(&mut json);
        json
    }

    #[test]
    fn values_are_valid_json() {
        let text = "quote \" backslash \\ line\n é😀\u{1}\u{7f}";
        let parsed: String = serde_json::from_str(&written(text)).expect("JSON");
        assert_eq!(parsed, text);
        assert_eq!(written(-3), "-3");
        assert_eq!(written(u64::MAX), "18446744073709551615");
        assert_eq!(written(f64::MAX), "1.7976931348623157e308");
        assert_eq!(written(f64::NAN), "null");
        assert_eq!(written(None::<i32>), "null");
        assert_eq!(written(Some(true)), "true");
        assert_eq!(written(Value::Json("[1]")), "[1]");
    }
}
