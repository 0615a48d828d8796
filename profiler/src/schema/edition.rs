//! Which of two descriptions of the tables is the newer one.

use std::fmt;

use super::SCHEMA_VERSION;

/// Origin of a description of all tables and columns. The newer one is the greater.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Edition {
    schema: u64,
    /// Version of the profiler.
    version: Vec<u64>,
    /// Columns of all tables: development versions can add some.
    columns: u64,
}

impl Edition {
    /// That of this program, with this number of columns.
    pub fn of_program(columns: usize) -> Self {
        let version = env!("CARGO_PKG_VERSION").split('.');
        let number = |text: &str| text.split('-').next().and_then(|text| text.parse().ok());
        Self {
            schema: u64::from(SCHEMA_VERSION),
            version: version.filter_map(number).take(3).collect(),
            columns: columns as u64,
        }
    }

    /// Reads what [`Edition`] writes as text.
    pub fn parse(text: &str) -> Option<Self> {
        let (schema, rest) = text.strip_prefix("schema ")?.split_once(", profiler ")?;
        let (version, columns) = rest.strip_suffix(" columns")?.split_once(", ")?;
        let version: Result<_, _> = version.split('.').map(str::parse).collect();
        Some(Self {
            schema: schema.parse().ok()?,
            version: version.ok()?,
            columns: columns.parse().ok()?,
        })
    }
}

impl fmt::Display for Edition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version: Vec<_> = self.version.iter().map(u64::to_string).collect();
        let (schema, version, columns) = (self.schema, version.join("."), self.columns);
        write!(f, "schema {schema}, profiler {version}, {columns} columns")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newer_is_greater() {
        let texts = [
            "schema 2, profiler 9.0.0, 900 columns",
            "schema 3, profiler 0.9.0, 900 columns",
            "schema 3, profiler 0.10.0, 90 columns",
            "schema 3, profiler 0.10.0, 100 columns",
        ];
        let editions = texts.map(|text| Edition::parse(text).expect(text));
        assert!(editions.is_sorted_by(|one, other| one < other));
        assert_eq!(editions.map(|edition| edition.to_string()), texts);
        let ours = Edition::of_program(7);
        assert_eq!(Edition::parse(&ours.to_string()), Some(ours));
        for other in ["", "schema 3", "schema x, profiler 1.0.0, 7 columns", "7"] {
            assert_eq!(Edition::parse(other), None, "{other}");
        }
    }
}
