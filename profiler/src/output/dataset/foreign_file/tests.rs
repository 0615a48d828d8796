//! Files over each of the limits, and files within them.

use std::sync::{Arc, atomic::AtomicU64};

use arrow::{
    array::{ArrayRef, DictionaryArray, Int32Array, ListBuilder, StringArray, StringBuilder},
    datatypes::{Field, Schema},
};
use parquet::{
    arrow::{
        ArrowWriter, ProjectionMask,
        arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader},
        parquet_to_arrow_field_levels,
    },
    basic::{Compression, Encoding, ZstdLevel},
    file::properties::{WriterProperties, WriterVersion},
};

use super::*;
use crate::output::dataset::parquet_reader::ParquetReader;

/// How a column is stored.
type Stored = (Option<Encoding>, WriterVersion);

fn written(column: &ArrayRef, (encoding, version): Stored) -> File {
    let field = Field::new("text", column.data_type().clone(), true);
    let schema = Arc::new(Schema::new(vec![field]));
    let level = ZstdLevel::try_new(1).unwrap();
    let properties = WriterProperties::builder()
        .set_writer_version(version)
        .set_compression(Compression::ZSTD(level))
        .set_data_page_row_count_limit(500)
        .set_write_batch_size(100)
        .set_dictionary_enabled(encoding.is_none())
        .set_dictionary_page_size_limit(1 << 30);
    let properties = match encoding {
        Some(encoding) => properties.set_encoding(encoding),
        None => properties,
    };
    let mut file = tempfile::tempfile().unwrap();
    let properties = Some(properties.build());
    let mut writer = ArrowWriter::try_new(&mut file, schema.clone(), properties).unwrap();
    let batch = RecordBatch::try_new(schema, vec![column.clone()]).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    file
}

/// The same text in each row, which takes the memory of one.
fn repeated(text: &str, rows: usize) -> ArrayRef {
    let texts = Arc::new(StringArray::from_iter_values([text]));
    let keys = Int32Array::from(vec![0; rows]);
    Arc::new(DictionaryArray::<Int32Type>::try_new(keys, texts).unwrap())
}

/// Reads a file without a look at its metadata, which can lie. Returns the rows, and the size of
/// their values as it was counted.
fn read(file: File) -> Result<(Vec<RecordBatch>, u64), String> {
    let limits = Arc::new(Limits::of(0));
    let file = Bounded(Arc::new(file));
    let metadata = ArrowReaderMetadata::load(&file, ArrowReaderOptions::new()).unwrap();
    let columns = parquet_to_arrow_field_levels(
        metadata.parquet_schema(),
        ProjectionMask::all(),
        // As texts, whatever the file says.
        None,
    );
    let groups = ForeignGroups {
        file,
        metadata: metadata.metadata().clone(),
        groups: vec![(0, Arc::new(AtomicU64::new(0)))],
        limits: limits.clone(),
    };
    let columns = columns.unwrap();
    let reader = ParquetRecordBatchReader::try_new_with_row_groups(&columns, &groups, 1024, None);
    let batches: Result<Vec<_>, _> = reader.unwrap().collect();
    let counted = limits.bytes - limits.left.load(Ordering::Relaxed);
    match batches {
        Ok(batches) => Ok((batches, counted)),
        Err(error) => Err(limits
            .refused()
            .map_or(error.to_string(), |why| why.to_string())),
    }
}

const ENCODINGS: [Option<Encoding>; 4] = [
    None,
    Some(Encoding::PLAIN),
    Some(Encoding::DELTA_LENGTH_BYTE_ARRAY),
    Some(Encoding::DELTA_BYTE_ARRAY),
];
const VERSIONS: [WriterVersion; 2] = [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0];

#[test]
fn counted_sizes_are_those_of_the_decoded_texts() {
    let texts = (0..3000_u64).map(|row| match row % 7 {
        0 => None,
        1 => Some(String::new()),
        _ => Some(format!(
            "/usr/bin/{}",
            "x".repeat((row * row % 90) as usize)
        )),
    });
    let texts: Vec<_> = texts.collect();
    let mut lists = ListBuilder::new(StringBuilder::new());
    for row in texts.chunks(3) {
        for text in row {
            lists.values().append_option(text.as_ref());
        }
        lists.append(row[0].is_some());
    }
    let lists: ArrayRef = Arc::new(lists.finish());
    let plain: ArrayRef = Arc::new(StringArray::from(texts));
    for column in [plain, lists] {
        for encoding in ENCODINGS {
            for version in VERSIONS {
                let (batches, counted) = read(written(&column, (encoding, version))).unwrap();
                let (mut bytes, mut values) = (0, 0);
                for batch in &batches {
                    let column = batch.column(0);
                    let texts = match column.as_list_opt::<i32>() {
                        Some(lists) => {
                            // Null and empty lists have a level each.
                            values += (0..lists.len()).filter(|row| lists.is_null(*row)).count();
                            lists.values()
                        }
                        None => column,
                    };
                    values += texts.len();
                    bytes += texts.as_string::<i32>().values().len();
                }
                let shown = format!("{encoding:?} {version:?} {:?}", column.data_type());
                // The decoder computes indices in groups of eight.
                let padding = counted.checked_sub((values * 8 + bytes) as u64);
                let most = if encoding.is_none() { 30 * 8 * 100 } else { 0 };
                assert!(
                    padding.is_some_and(|more| more <= most),
                    "{shown}: {padding:?}"
                );
                let same = arrow::compute::concat_batches(&batches[0].schema(), &batches).unwrap();
                assert_eq!(same.column(0), &column, "{shown}");
            }
        }
    }
}

#[test]
fn repeated_texts_are_refused_before_they_are_decoded() {
    let text = "x".repeat(1 << 20);
    for encoding in [None, Some(Encoding::DELTA_BYTE_ARRAY)] {
        for version in VERSIONS {
            let file = written(&repeated(&text, 300), (encoding, version));
            let bytes = file.metadata().unwrap().len();
            assert!(bytes < 100_000, "{bytes}");
            let why = read(file).unwrap_err();
            assert!(
                why.starts_with("column text of ") && why.contains("--trust"),
                "{why}"
            );
        }
    }
}

#[test]
fn long_texts_and_large_pages_are_refused_whatever_the_metadata_say() {
    let cases = [
        (
            (1 << 20) + 1,
            "a text of 1.0 MiB, over the limit of 1.0 MiB",
        ),
        ((64 << 20) + 1, "a page, over the limit of 64.0 MiB"),
    ];
    for (length, expected) in cases {
        for encoding in ENCODINGS {
            let column = repeated(&"x".repeat(length), 2);
            let why = read(written(&column, (encoding, WriterVersion::PARQUET_1_0))).unwrap_err();
            assert!(why.starts_with(expected), "{encoding:?}: {why}");
        }
    }
}

#[test]
fn metadata_over_the_limits_are_refused() {
    let own = |file: &File| ParquetReader::of(file.try_clone().unwrap(), None).unwrap();
    let refused = |file: &File| {
        let limits = Trust::Nobody.limits(file).unwrap();
        let read = ParquetReader::of(file.try_clone().unwrap(), limits);
        read.map(|_| ()).unwrap_err().to_string()
    };
    let rows = 2_000_000;
    let many = written(&repeated("", rows), (None, WriterVersion::PARQUET_1_0));
    assert!(refused(&many).starts_with("2000000 rows, over the limit of 1"));
    let found = own(&many).build().unwrap();
    assert_eq!(
        found.map(|batch| batch.unwrap().num_rows()).sum::<usize>(),
        rows
    );
    let long = repeated(&"x".repeat((256 << 20) + 1), 1);
    let long = written(&long, (Some(Encoding::PLAIN), WriterVersion::PARQUET_1_0));
    let why = refused(&long);
    assert!(why.starts_with("column text of 256.0 MiB, over"), "{why}");
    assert!(Trust::Everyone.limits(&long).unwrap().is_none());
}

#[test]
fn holes_of_a_file_do_not_count() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(1 << 40).unwrap();
    let limits = Trust::Nobody.limits(&file).unwrap().unwrap();
    assert!(limits.rows < ROWS + (1 << 20), "{}", limits.rows);
}

#[test]
fn batches_of_journals_over_the_limits_are_refused() {
    let batch = |column: ArrayRef| {
        let field = Field::new("text", column.data_type().clone(), true);
        RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![column]).unwrap()
    };
    let checked = |batches: &[RecordBatch]| {
        let mut limits = Limits::of(0);
        let mut batches = batches.iter();
        let checked = batches.try_for_each(|batch| limits.check_batch(batch));
        checked.map_err(|_| limits.refused().unwrap().to_string())
    };
    let mebibyte = "x".repeat(1 << 20);
    assert_eq!(checked(&[batch(repeated(&mebibyte, 256))]), Ok(()));
    let long: ArrayRef = Arc::new(StringArray::from_iter_values([format!("{mebibyte}x")]));
    for (batches, expected) in [
        (
            vec![batch(repeated(&mebibyte, 257))],
            "a batch of 257.0 MiB",
        ),
        (vec![batch(long)], "a text of 1.0 MiB"),
        (vec![batch(repeated("", 1_000_001))], "1000001 rows"),
        (vec![batch(repeated("", 600_000)); 2], "1200000 rows"),
    ] {
        let why = checked(&batches).unwrap_err();
        assert!(why.starts_with(expected), "{why}");
    }
}
