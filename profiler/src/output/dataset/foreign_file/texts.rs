//! Sizes of the texts of a page before they are decoded: a text in a dictionary, or the beginning of the
//! text before, is stored once and decoded for each row.

use parquet::{basic::Encoding, errors::Result};

use super::damaged;

/// Sizes of texts in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    pub longest: u64,
    pub all: u64,
}

impl Size {
    fn add(&mut self, length: u64) {
        self.longest = self.longest.max(length);
        self.all = self.all.saturating_add(length);
    }
}

/// Lengths of the texts of the dictionary.
#[derive(Debug, Default)]
pub struct Texts(Vec<u32>);

impl Texts {
    pub fn set_dictionary(&mut self, page: &[u8], number: u32) -> Result<()> {
        self.0.clear();
        let mut bytes = Bytes(page);
        for _ in 0..number {
            self.0.push(bytes.text()?);
        }
        Ok(())
    }

    /// The longest text of the dictionary, in bytes.
    pub fn longest(&self) -> u64 {
        self.0.iter().copied().max().unwrap_or(0).into()
    }

    /// Size of the texts of a page with at most this number of values.
    pub fn size(&self, encoding: Encoding, page: &[u8], number: u64) -> Result<Size> {
        let mut bytes = Bytes(page);
        let mut size = Size::default();
        match encoding {
            Encoding::PLAIN => {
                for _ in 0..number {
                    if bytes.0.is_empty() {
                        break;
                    }
                    size.add(bytes.text()?.into());
                }
            }
            Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY => {
                // Without values, there is no dictionary.
                if !page.is_empty() {
                    self.indices(bytes, number, &mut size)?;
                }
            }
            Encoding::DELTA_LENGTH_BYTE_ARRAY => {
                for length in bytes.integers(number)? {
                    size.add(length);
                }
            }
            Encoding::DELTA_BYTE_ARRAY => {
                let (prefixes, suffixes) = (bytes.integers(number)?, bytes.integers(number)?);
                let mut before = 0;
                for (prefix, suffix) in prefixes.into_iter().zip(suffixes) {
                    before = prefix.min(before) + suffix;
                    size.add(before);
                }
            }
            other => return Err(damaged(&format!("texts with encoding {other}"))),
        }
        Ok(size)
    }

    /// Adds the texts of indices: runs of the same one, and groups of eight.
    fn indices(&self, mut bytes: Bytes<'_>, mut left: u64, size: &mut Size) -> Result<()> {
        let width = u32::from(bytes.take(1)?[0]);
        if width > 32 {
            return Err(damaged("width of indices"));
        }
        let length = |index: u64| {
            let index = usize::try_from(index).ok();
            let length = index.and_then(|index| self.0.get(index));
            length
                .map(|length| u64::from(*length))
                .ok_or_else(|| damaged("index"))
        };
        while left > 0 && !bytes.0.is_empty() {
            let header = bytes.varint()?;
            // Padding at the end of a page.
            if header == 0 {
                break;
            }
            let count = header >> 1;
            if header & 1 == 0 {
                let run = count.min(left);
                let value = bytes.take(width.div_ceil(8) as usize)?;
                let mut index = [0; 8];
                index[..value.len()].copy_from_slice(value);
                let length = length(u64::from_le_bytes(index))?;
                size.longest = size.longest.max(length);
                size.all = size.all.saturating_add(length.saturating_mul(run));
                left -= run;
                continue;
            }
            let values = count.saturating_mul(8).min(left);
            let stored = count.saturating_mul(u64::from(width));
            let stored = usize::try_from(stored).unwrap_or(usize::MAX);
            // The last group can be cut off.
            let packed = bytes.take(stored.min(bytes.0.len()))?;
            for number in 0..values {
                let Some(index) = bits(packed, number, width) else {
                    return Ok(());
                };
                size.add(length(index)?);
            }
            left -= values;
        }
        Ok(())
    }
}

/// A number among those that are packed with this number of bits, at most 32.
fn bits(packed: &[u8], number: u64, width: u32) -> Option<u64> {
    let start = number.checked_mul(width.into())?;
    let end = usize::try_from((start + u64::from(width)).div_ceil(8)).ok()?;
    let first = usize::try_from(start / 8).ok()?;
    let mut bytes = [0; 8];
    let found = packed.get(first..end)?;
    bytes[..found.len()].copy_from_slice(found);
    Some((u64::from_le_bytes(bytes) >> (start % 8)) & ((1 << width) - 1))
}

/// Bytes that are left of a page.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let split = self.0.split_at_checked(length);
        let (taken, rest) = split.ok_or_else(|| damaged("end of a page"))?;
        self.0 = rest;
        Ok(taken)
    }

    /// Length of the next text, which is skipped.
    fn text(&mut self) -> Result<u32> {
        let mut length = [0; 4];
        length.copy_from_slice(self.take(4)?);
        let length = u32::from_le_bytes(length);
        self.take(length as usize)?;
        Ok(length)
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..70).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(damaged("a number"))
    }

    fn zigzag(&mut self) -> Result<i64> {
        let value = self.varint()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// Lengths with encoding `DELTA_BINARY_PACKED`, at most this number.
    fn integers(&mut self, most: u64) -> Result<Vec<u64>> {
        let (block, minis) = (self.varint()?, self.varint()?);
        let number = self.varint()?;
        let first = self.zigzag()?;
        if minis == 0 || block % 128 != 0 || block % minis != 0 || (block / minis) % 32 != 0 {
            return Err(damaged("sizes of blocks"));
        }
        if block == 0 || number > most {
            return Err(damaged("number of texts"));
        }
        let mini = block / minis;
        // The decoder computes with 32 bits.
        let mut value = i32::try_from(first).map_err(|_| damaged("a length"))?;
        let mut values = Vec::new();
        let mut left = number;
        if left > 0 {
            values.push(value);
            left -= 1;
        }
        while left > 0 {
            let least = i32::try_from(self.zigzag()?).map_err(|_| damaged("a length"))?;
            let widths = self.take(usize::try_from(minis).unwrap_or(usize::MAX))?;
            for &width in widths {
                // Widths of blocks without values have no meaning.
                if left == 0 {
                    break;
                }
                let width = u32::from(width);
                if width > 32 {
                    return Err(damaged("width of lengths"));
                }
                let stored = usize::try_from((mini / 8).saturating_mul(width.into()));
                let packed = self.take(stored.unwrap_or(usize::MAX).min(self.0.len()))?;
                for number in 0..mini.min(left) {
                    let delta = bits(packed, number, width).ok_or_else(|| damaged("lengths"))?;
                    let delta = u32::try_from(delta).map_err(|_| damaged("lengths"))?;
                    let delta = delta.cast_signed();
                    value = value.wrapping_add(least).wrapping_add(delta);
                    values.push(value);
                }
                left -= mini.min(left);
            }
        }
        let values = values.into_iter();
        let lengths = values.map(|value| u64::try_from(value).map_err(|_| damaged("a length")));
        lengths.collect()
    }
}
