//! The pages of one column of a row group. They are decompressed here, up to the limit, because the
//! decoder believes the size that the header of a page has. Then their values are counted before
//! they are decoded.

use std::{
    io::Read as _,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use parquet::{
    basic::{Compression, Encoding, Type},
    column::page::{Page, PageMetadata, PageReader},
    errors::Result,
    file::{metadata::RowGroupMetaData, serialized_reader::SerializedPageReader},
    schema::types::ColumnDescPtr,
};

use super::{
    CHUNK_BYTES, GROUP_BYTES, Limits, PAGE_BYTES, bounded::Bounded, damaged, texts::Texts,
};

/// The pages of one column of a row group.
pub struct ForeignPages {
    /// As they are in the file.
    stored: SerializedPageReader<Bounded>,
    is_compressed: bool,
    column: ColumnDescPtr,
    texts: Texts,
    /// Values that a column without lists can still have.
    left: u64,
    /// Size of the decoded values in bytes: of this column, and of all columns of the row group.
    decoded: u64,
    decoded_of_group: Arc<AtomicU64>,
    limits: Arc<Limits>,
}

impl ForeignPages {
    pub fn new(
        file: &Bounded,
        group: &RowGroupMetaData,
        column: usize,
        limits: Arc<Limits>,
        decoded_of_group: Arc<AtomicU64>,
    ) -> Result<Self> {
        let rows = usize::try_from(group.num_rows())?;
        let column = group.column(column);
        let is_compressed = match column.compression() {
            Compression::ZSTD(_) => true,
            Compression::UNCOMPRESSED => false,
            other => return Err(damaged(&format!("compression {other}"))),
        };
        // The reader then leaves the pages compressed.
        let stored = column.clone().into_builder();
        let stored = stored.set_compression(Compression::UNCOMPRESSED).build()?;
        Ok(Self {
            stored: SerializedPageReader::new(Arc::new(file.clone()), &stored, rows, None)?,
            is_compressed,
            column: column.column_descr_ptr(),
            texts: Texts::default(),
            left: rows as u64,
            decoded: 0,
            decoded_of_group,
            limits,
        })
    }

    /// The content of a page, of which the first bytes are not compressed.
    fn content(&self, stored: &Bytes, plain: usize, is_compressed: bool) -> Result<Bytes> {
        if !(self.is_compressed && is_compressed) {
            return if stored.len() as u64 > PAGE_BYTES {
                Err(self.limits.over_page())
            } else {
                Ok(stored.clone())
            };
        }
        let levels = stored.get(..plain).ok_or_else(|| damaged("levels"))?;
        let mut content = levels.to_vec();
        if plain < stored.len() {
            let decoder = zstd::stream::read::Decoder::with_buffer(&stored[plain..])?;
            decoder.take(PAGE_BYTES + 1).read_to_end(&mut content)?;
        }
        if content.len() as u64 > PAGE_BYTES {
            return Err(self.limits.over_page());
        }
        Ok(content.into())
    }

    fn decompressed(&self, page: Page) -> Result<Page> {
        Ok(match page {
            Page::DataPage {
                buf,
                num_values,
                encoding,
                def_level_encoding,
                rep_level_encoding,
                statistics,
            } => Page::DataPage {
                buf: self.content(&buf, 0, true)?,
                num_values,
                encoding,
                def_level_encoding,
                rep_level_encoding,
                statistics,
            },
            Page::DataPageV2 {
                buf,
                num_values,
                encoding,
                num_nulls,
                num_rows,
                def_levels_byte_len,
                rep_levels_byte_len,
                is_compressed,
                statistics,
            } => {
                let levels = def_levels_byte_len.saturating_add(rep_levels_byte_len);
                Page::DataPageV2 {
                    buf: self.content(&buf, levels as usize, is_compressed)?,
                    num_values,
                    encoding,
                    num_nulls,
                    num_rows,
                    def_levels_byte_len,
                    rep_levels_byte_len,
                    is_compressed,
                    statistics,
                }
            }
            Page::DictionaryPage {
                buf,
                num_values,
                encoding,
                is_sorted,
            } => Page::DictionaryPage {
                buf: self.content(&buf, 0, true)?,
                num_values,
                encoding,
                is_sorted,
            },
        })
    }

    /// Counts the values of a page.
    fn count(&mut self, page: &Page) -> Result<()> {
        let is_text = self.column.physical_type() == Type::BYTE_ARRAY;
        let (values, number, encoding) = match page {
            Page::DictionaryPage {
                buf, num_values, ..
            } => {
                if is_text {
                    self.texts.set_dictionary(buf, *num_values)?;
                    self.limits.check_cell(self.texts.longest())?;
                }
                return Ok(());
            }
            Page::DataPage {
                buf,
                num_values,
                encoding,
                def_level_encoding,
                rep_level_encoding,
                ..
            } => {
                let mut values = &buf[..];
                for (most, encoding) in [
                    (self.column.max_rep_level(), rep_level_encoding),
                    (self.column.max_def_level(), def_level_encoding),
                ] {
                    if most > 0 {
                        values = after_levels(values, *encoding)?;
                    }
                }
                (values, *num_values, *encoding)
            }
            Page::DataPageV2 {
                buf,
                num_values,
                encoding,
                def_levels_byte_len,
                rep_levels_byte_len,
                ..
            } => {
                let levels = def_levels_byte_len.saturating_add(*rep_levels_byte_len);
                let values = buf.get(levels as usize..);
                (
                    values.ok_or_else(|| damaged("levels"))?,
                    *num_values,
                    *encoding,
                )
            }
        };
        let number = u64::from(number);
        if self.column.max_rep_level() == 0 {
            let left = self.left.checked_sub(number);
            self.left = left.ok_or_else(|| damaged("more values than rows"))?;
        }
        let width = u64::try_from(self.column.type_length()).unwrap_or(0);
        self.decode(number.saturating_mul(width.max(8)))?;
        if is_text {
            let size = self.texts.size(encoding, values, number)?;
            self.limits.check_cell(size.longest)?;
            self.decode(size.all)?;
        }
        Ok(())
    }

    fn decode(&mut self, bytes: u64) -> Result<()> {
        self.decoded = self.decoded.saturating_add(bytes);
        if self.decoded > CHUNK_BYTES {
            let column = format!("column {}", self.column.name());
            return Err(self.limits.over_bytes(&column, self.decoded, CHUNK_BYTES));
        }
        let before = self.decoded_of_group.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > GROUP_BYTES {
            return Err(self
                .limits
                .over_bytes("a row group", before + bytes, GROUP_BYTES));
        }
        self.limits.decode(bytes)
    }
}

/// What follows levels of version 1, which begin with their length.
fn after_levels(bytes: &[u8], encoding: Encoding) -> Result<&[u8]> {
    let rest = bytes.split_first_chunk().and_then(|(length, rest)| {
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        rest.get(length..)
    });
    rest.filter(|_| encoding == Encoding::RLE)
        .ok_or_else(|| damaged("levels"))
}

impl PageReader for ForeignPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let Some(page) = self.stored.get_next_page()? else {
            return Ok(None);
        };
        let page = self.decompressed(page)?;
        self.count(&page)?;
        Ok(Some(page))
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.stored.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.stored.skip_next_page()
    }
}

impl Iterator for ForeignPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}
