//! Names of tables and columns in `views.sql`: it remains a list of views of these tables.
//!
//! Input: each table is followed by its columns up to an empty name; NUL ends a name.

#![no_main]

use std::{
    any::TypeId,
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::Arc,
};

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use fuzz::run::Run;
use libfuzzer_sys::fuzz_target;
use parquet::arrow::ArrowWriter;
use profiler::{
    output::dataset::{
        files::{Directory, is_plain_name},
        views,
    },
    schema::DatasetSchema,
    sources::dataset_schema,
};
use sqlparser::{
    ast::{
        Expr, FunctionArg, FunctionArgExpr, ObjectName, Select, SelectItem, SetExpr, Statement,
        TableFactor, Value,
    },
    dialect::{Dialect, DuckDbDialect},
    parser::Parser,
};

thread_local! {
    static RUN: Run = Run::new("views");
    /// The tables without the common joins, whose text does not depend on names, and uses SQL that
    /// sqlparser does not know.
    static SCHEMA: DatasetSchema = {
        let tables = dataset_schema().tables_of_sources().iter();
        let tables = tables.flat_map(|of| of.sources.iter().map(|source| (*source, of.table)));
        DatasetSchema::new(tables, Vec::new())
    };
}

fuzz_target!(|text: &str| {
    let tables: BTreeMap<&str, Vec<&str>> = text
        .split("\0\0")
        .filter_map(|table| {
            let mut names = table.split('\0');
            let name = names.next().filter(|name| is_name(name))?;
            Some((name, names.collect()))
        })
        .collect();
    RUN.with(|run| SCHEMA.with(|schema| check(run, schema, &tables)));
});

/// Whether the name is valid for a new entry of the directory.
fn is_name(name: &str) -> bool {
    let is_taken = name == "run.json" || views::is_description(name);
    is_plain_name(name) && name.len() < 256 && !is_taken
}

fn check(run: &Run, schema: &DatasetSchema, tables: &BTreeMap<&str, Vec<&str>>) {
    run.begin();
    for (table, columns) in tables {
        run.put_part(table, 0, &part(columns));
    }
    let directory = Directory::open(&run.path(), None).unwrap();
    views::refresh(&directory, "fuzz", schema).unwrap();
    let sql = fs::read_to_string(run.path().join(views::FILE)).unwrap();
    // sqlparser does not know the lists of the macros, which come first.
    let first = sql.find("\nCREATE OR REPLACE VIEW").unwrap();
    let statements = match Parser::parse_sql(&WithComments, &sql[first..]) {
        Ok(statements) => statements,
        Err(error) => panic!("{error}\n{sql}"),
    };
    let mut found = BTreeSet::new();
    let mut others = 0;
    for statement in &statements {
        let view = match statement {
            Statement::CreateView(view) => view,
            Statement::Comment { .. } => continue,
            _ => panic!("{statement}"),
        };
        let SetExpr::Select(select) = &*view.query.body else {
            panic!("{statement}");
        };
        match files_of(select) {
            Some(files) => {
                let name = plain(&view.name);
                assert_eq!(files, format!("{name}/host=*/part-*.parquet"));
                let times: Vec<_> = columns_of(select);
                assert_eq!(times, accepted(&tables[name]), "{statement}");
                assert!(found.insert(name.to_owned()));
            }
            None => others += 1,
        }
    }
    let given: BTreeSet<_> = tables.keys().map(|&name| name.to_owned()).collect();
    assert_eq!(found, given, "{sql}");
    let without_rows = schema.tables();
    let without_rows = without_rows.filter(|table| !tables.contains_key(table.name));
    let of_processes = schema.tables();
    let of_processes = of_processes.filter(|table| table.thread_column().is_some());
    assert_eq!(others, without_rows.count() + of_processes.count(), "{sql}");
}

/// Names that DuckDB accepts: not empty, and unique ignoring case.
fn accepted<'a>(columns: &[&'a str]) -> Vec<&'a str> {
    let mut known = BTreeSet::new();
    let mut columns = columns.to_vec();
    columns.retain(|name| !name.is_empty() && known.insert(name.to_lowercase()));
    columns
}

/// `DuckDB`'s dialect with `COMMENT ON`, which sqlparser does not know there.
#[derive(Debug)]
struct WithComments;

impl Dialect for WithComments {
    fn dialect(&self) -> TypeId {
        DuckDbDialect {}.dialect()
    }

    fn is_identifier_start(&self, character: char) -> bool {
        DuckDbDialect {}.is_identifier_start(character)
    }

    fn is_identifier_part(&self, character: char) -> bool {
        DuckDbDialect {}.is_identifier_part(character)
    }

    fn supports_comment_on(&self) -> bool {
        true
    }

    fn supports_filter_during_aggregation(&self) -> bool {
        true
    }

    fn supports_named_fn_args_with_eq_operator(&self) -> bool {
        true
    }

    fn supports_dictionary_syntax(&self) -> bool {
        true
    }

    fn supports_lambda_functions(&self) -> bool {
        true
    }

    fn supports_array_typedef_with_brackets(&self) -> bool {
        true
    }

    fn supports_order_by_all(&self) -> bool {
        true
    }

    fn supports_select_wildcard_exclude(&self) -> bool {
        true
    }

    fn supports_select_wildcard_replace(&self) -> bool {
        true
    }
}

/// A Parquet file without rows, with these timestamp columns.
fn part(columns: &[&str]) -> Vec<u8> {
    let time = DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()));
    let mut fields = vec![Field::new("\0 count", DataType::UInt64, true)];
    fields.extend(
        columns
            .iter()
            .map(|&name| Field::new(name, time.clone(), true)),
    );
    let mut bytes = Vec::new();
    let writer = ArrowWriter::try_new(&mut bytes, Arc::new(Schema::new(fields)), None).unwrap();
    writer.close().unwrap();
    bytes
}

fn plain(name: &ObjectName) -> &str {
    match &name.0[..] {
        [part] => &part.as_ident().unwrap().value,
        _ => panic!("{name}"),
    }
}

/// The argument of `read_parquet`.
fn files_of(select: &Select) -> Option<String> {
    let [from] = &select.from[..] else {
        return None;
    };
    let TableFactor::Table { name, args, .. } = &from.relation else {
        return None;
    };
    let args = &args.as_ref()?.args;
    assert_eq!(plain(name), "read_parquet");
    let FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(value))) = &args[0] else {
        panic!("{select}");
    };
    assert_eq!(args.len(), 4);
    match &value.value {
        Value::SingleQuotedString(path) => Some(path.clone()),
        _ => panic!("{select}"),
    }
}

/// The columns that are cast.
fn columns_of(select: &Select) -> Vec<&str> {
    let options = match &select.projection[..] {
        [SelectItem::Wildcard(options)] => options,
        [
            SelectItem::Wildcard(options),
            SelectItem::ExprWithAlias { alias, .. },
        ] if alias.value == "run" => options,
        _ => panic!("{select}"),
    };
    let replaced = options
        .opt_replace
        .iter()
        .flat_map(|replace| &replace.items);
    replaced
        .map(|element| {
            let Expr::Cast { expr, .. } = &element.expr else {
                panic!("{select}");
            };
            assert!(matches!(&**expr, Expr::Identifier(name) if *name == element.column_name));
            &*element.column_name.value
        })
        .collect()
}
