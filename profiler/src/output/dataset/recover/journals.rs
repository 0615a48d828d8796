//! Turning journals into Parquet files.

use std::{collections::HashSet, io, path::PathBuf};

use arrow::{datatypes::SchemaRef, error::ArrowError};
use parquet::arrow::ProjectionMask;

use super::{JournalOutcome, RecoveryReport};
use crate::output::{
    arrow_stream::End,
    dataset::{
        files::Directory,
        journal,
        journal_reader::JournalReader,
        keyed::{self, Key, KeyedRows},
        parquet_file,
        parquet_reader::ParquetReader,
        row_buffer::RowBuffer,
    },
};

/// Recovers the journals of one host in one table.
pub fn recover_directory(
    directory: &Directory,
    table: &str,
    report: &mut RecoveryReport,
) -> io::Result<()> {
    let names = directory.names()?;
    let mut numbers: Vec<_> = names
        .iter()
        .filter_map(|name| journal::number(name))
        .collect();
    numbers.sort_unstable();
    let mut plain = Vec::new();
    let mut keyed = Vec::new();
    for number in numbers {
        let path = directory.path().join(journal::name(number));
        match JournalReader::open(directory, number) {
            Ok(Some(journal)) if journal.is_keyed() => keyed.push((path, journal)),
            Ok(Some(journal)) => plain.push((path, journal)),
            Ok(None) => report.journals.push((path, JournalOutcome::InUse)),
            Err(error) => report.journals.push((path, failed(&error))),
        }
    }
    let is_in_use = |(_, outcome): &(_, JournalOutcome)| *outcome == JournalOutcome::InUse;
    if !report.journals.iter().any(is_in_use) {
        directory.remove_temporary_files()?;
    }
    let mut recovered = 0;
    for (path, journal) in plain {
        let outcome = recover_journal(directory, journal).unwrap_or_else(|error| failed(&error));
        if let JournalOutcome::Recovered { rows, .. } | JournalOutcome::Damaged { rows, .. } =
            &outcome
        {
            recovered += rows;
        }
        report.journals.push((path, outcome));
    }
    let (paths, journals): (Vec<_>, Vec<_>) = keyed.into_iter().unzip();
    match recover_keyed(directory, journals) {
        Ok((outcomes, rows)) => {
            recovered += rows;
            report.journals.extend(paths.into_iter().zip(outcomes));
        }
        Err(error) => {
            let all_failed = paths.into_iter().map(|path| (path, failed(&error)));
            report.journals.extend(all_failed);
        }
    }
    if recovered != 0 {
        *report.rows.entry(table.to_owned()).or_default() += recovered;
    }
    Ok(())
}

fn failed(error: &io::Error) -> JournalOutcome {
    JournalOutcome::Failed {
        error: error.to_string(),
    }
}

/// Turns one journal into a Parquet file.
fn recover_journal(directory: &Directory, mut reader: JournalReader) -> io::Result<JournalOutcome> {
    let number = reader.number;
    if directory.has_file(&parquet_file::name(number))? {
        directory.remove(&journal::name(number))?;
        return Ok(JournalOutcome::Stale);
    }
    let mut encoder = None;
    while let Some(batches) = reader.next_step()? {
        let Some(schema) = reader.schema() else {
            break;
        };
        let mut rows = RowBuffer::new(schema.clone());
        for batch in batches {
            rows.push(batch).map_err(invalid)?;
        }
        let rows = rows.take().map_err(invalid)?;
        if rows.is_empty() {
            continue;
        }
        let encoder = match &mut encoder {
            Some(encoder) => encoder,
            none => none.insert(parquet_file::Encoder::new(schema)?),
        };
        encoder.encode(&rows)?;
    }
    let mut rows = 0;
    if let Some(encoder) = encoder {
        rows = encoder.rows();
        let bytes = encoder.finish()?;
        directory.write_new(&parquet_file::name(number), &bytes)?;
    }
    retire(
        reader,
        directory,
        directory.path().join(parquet_file::name(number)),
        rows,
    )
}

/// Turns all journals of a keyed table into one Parquet file. Returns an outcome for each journal,
/// and the rows in the file.
fn recover_keyed(
    directory: &Directory,
    mut readers: Vec<JournalReader>,
) -> io::Result<(Vec<JournalOutcome>, u64)> {
    let (rows, batches_of) = read_keyed(&mut readers)?;
    let mut number = readers.iter().map(|reader| reader.number).max();
    let mut stored = HashSet::new();
    if number.is_some() {
        for name in directory.names()? {
            if let Some(taken) = parquet_file::number(&name)
                && directory.has_file(&name)?
            {
                stored_keys(directory, &name, &mut stored)?;
                number = number.map(|free| free.max(taken + 1));
            }
        }
    }
    let mut count = 0;
    let mut path = PathBuf::new();
    if let (Some((schema, mut keyed)), Some(number)) = (rows, number) {
        keyed.remove(|key| stored.contains(key));
        if let Some(batch) = keyed.take(true).map_err(invalid)? {
            let mut sorted = RowBuffer::new(schema.clone());
            sorted.push(batch).map_err(invalid)?;
            let mut encoder = parquet_file::Encoder::new(schema)?;
            encoder.encode(&sorted.take().map_err(invalid)?)?;
            count = encoder.rows();
            path = directory.path().join(parquet_file::name(number));
            directory.write_new(&parquet_file::name(number), &encoder.finish()?)?;
        }
    }
    let outcomes = readers
        .into_iter()
        .zip(batches_of)
        .map(|(reader, batches)| {
            let outcome = retire(reader, directory, path.clone(), count)?;
            Ok(match outcome {
                JournalOutcome::Recovered { .. } if batches == 0 => JournalOutcome::Empty,
                JournalOutcome::Empty if batches > 0 => JournalOutcome::Stale,
                outcome => outcome,
            })
        })
        .collect::<io::Result<_>>()?;
    Ok((outcomes, count))
}

/// Rows of all journals of a keyed table, if they have any.
type AllRows = Option<(SchemaRef, KeyedRows)>;

/// Reads the journals of a keyed table. Returns the last row of each key, and the number of batches
/// in each journal.
fn read_keyed(readers: &mut [JournalReader]) -> io::Result<(AllRows, Vec<u64>)> {
    let mut all: AllRows = None;
    let mut batches_of = Vec::new();
    for reader in readers {
        let mut batches = 0;
        while let Some(step) = reader.next_step()? {
            let Some(schema) = reader.schema() else {
                break;
            };
            let (expected, keyed) =
                all.get_or_insert_with(|| (schema.clone(), KeyedRows::new(schema.clone())));
            if *expected != schema {
                return Err(io::Error::other("the journals have different schemas"));
            }
            for batch in step {
                batches += 1;
                keyed.push(batch).map_err(invalid)?;
            }
        }
        batches_of.push(batches);
    }
    Ok((all, batches_of))
}

/// Adds the keys of the rows in a Parquet file.
fn stored_keys(directory: &Directory, name: &str, keys: &mut HashSet<Key>) -> io::Result<()> {
    let reader = ParquetReader::open(directory, name)?;
    let columns = ProjectionMask::columns(reader.parquet_schema(), ["pid", "start_ts"]);
    for batch in reader.with_projection(columns).build()? {
        keys.extend(keyed::keys(&batch?).map_err(invalid)?);
    }
    Ok(())
}

/// Removes a journal whose rows are in the Parquet file at `path`; renames it if it is damaged.
fn retire(
    reader: JournalReader,
    directory: &Directory,
    path: PathBuf,
    rows: u64,
) -> io::Result<JournalOutcome> {
    let name = journal::name(reader.number);
    if let Some(End::Damaged(damage)) = reader.end {
        let kept = directory.rename_to_free(&name, format!("{name}.corrupt"))?;
        return Ok(JournalOutcome::Damaged {
            path: directory.path().join(kept),
            rows,
            error: damage.to_string(),
        });
    }
    directory.remove(&name)?;
    Ok(if rows == 0 {
        JournalOutcome::Empty
    } else {
        JournalOutcome::Recovered { path, rows }
    })
}

fn invalid(error: ArrowError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
