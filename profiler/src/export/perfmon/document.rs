//! A JSON object with lists as long as the run, which are on disk until it is written.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufRead as _, BufReader, BufWriter, Seek as _, Write},
    path::Path,
};

use serde_json::Value;

/// A JSON value.
pub enum Node {
    Value(Value),
    /// Keys are sorted.
    Object(BTreeMap<String, Node>),
    List(List),
}

impl Default for Node {
    fn default() -> Self {
        Self::Object(BTreeMap::new())
    }
}

/// Values in a file without a name.
pub struct List(BufWriter<File>);

impl List {
    /// An empty list, in a file of this directory.
    pub fn new(directory: &Path) -> io::Result<Self> {
        tempfile::tempfile_in(directory).map(|file| Self(BufWriter::new(file)))
    }

    /// Adds a value in JSON without line breaks.
    pub fn push(&mut self, value: &str) -> io::Result<()> {
        writeln!(self.0, "{value}")
    }

    fn write(self, indent: &str, output: &mut dyn Write) -> io::Result<()> {
        let mut file = self
            .0
            .into_inner()
            .map_err(io::IntoInnerError::into_error)?;
        file.rewind()?;
        let mut separator = "";
        output.write_all(b"[")?;
        for value in BufReader::new(file).lines() {
            write!(output, "{separator}\n{indent}    {}", value?)?;
            separator = ",";
        }
        let end = if separator.is_empty() { "" } else { indent };
        let line = if separator.is_empty() { "" } else { "\n" };
        write!(output, "{line}{end}]")
    }
}

impl Node {
    /// Sets the value at a path of keys.
    pub fn set(&mut self, path: &[String], value: Self) {
        let Some((key, rest)) = path.split_first() else {
            *self = value;
            return;
        };
        if !matches!(self, Self::Object(_)) {
            *self = Self::default();
        }
        if let Self::Object(keys) = self {
            keys.entry(key.clone()).or_default().set(rest, value);
        }
    }

    /// Writes it in lines that start with `indent`, except the first one, as `json.dump` does with
    /// `indent=4`.
    pub fn write(self, indent: &str, output: &mut dyn Write) -> io::Result<()> {
        match self {
            Self::Value(Value::Object(map)) => {
                let nodes = map
                    .into_iter()
                    .map(|(key, value)| (key, Self::Value(value)));
                Self::Object(nodes.collect()).write(indent, output)
            }
            Self::Value(value) => write!(output, "{value}"),
            Self::List(list) => list.write(indent, output),
            Self::Object(keys) if keys.is_empty() => output.write_all(b"{}"),
            Self::Object(keys) => {
                let inner = format!("{indent}    ");
                let mut separator = "{";
                for (key, node) in keys {
                    write!(output, "{separator}\n{inner}{}: ", Value::String(key))?;
                    node.write(&inner, output)?;
                    separator = ",";
                }
                write!(output, "\n{indent}}}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_are_written_where_they_belong() {
        let mut list = List::new(&std::env::temp_dir()).expect("a file");
        for value in ["1", "null", "\"a\\nb\""] {
            list.push(value).expect("written");
        }
        let empty = List::new(&std::env::temp_dir()).expect("a file");
        let mut node = Node::default();
        node.set(&["b".into(), "c".into()], Node::List(list));
        node.set(&["b".into(), "a".into()], Node::List(empty));
        node.set(&["a".into()], Node::Value(json!({"x": [1]})));
        let mut text = Vec::new();
        node.write("", &mut text).expect("written");
        let text = String::from_utf8(text).expect("UTF-8");
        let expected = json!({"a": {"x": [1]}, "b": {"a": [], "c": [1, null, "a\nb"]}});
        assert_eq!(
            serde_json::from_str::<Value>(&text).expect("JSON"),
            expected
        );
        assert!(text.starts_with("{\n    \"a\""), "{text}");
    }
}
