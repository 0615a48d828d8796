//! Memory image of an executable or library of any 64-bit little-endian architecture.

use std::collections::BTreeMap;

use anyhow::Result;
use object::{Object as _, ObjectSegment as _};

pub struct Image<'a> {
    pub segments: Vec<(u64, &'a [u8])>,
    /// Values of relocated pointers by address.
    pub pointers: BTreeMap<u64, u64>,
}

impl<'a> Image<'a> {
    pub fn new(data: &'a [u8]) -> Result<Self> {
        let file = object::File::parse(data)?;
        let segments = file.segments();
        let relocations = file.dynamic_relocations().into_iter().flatten();
        Ok(Self {
            segments: segments
                .map(|segment| Ok((segment.address(), segment.data()?)))
                .collect::<Result<_>>()?,
            pointers: relocations
                .map(|(place, relocation)| (place, relocation.addend().cast_unsigned()))
                .collect(),
        })
    }

    /// Bytes from an address to the end of its segment.
    pub fn from(&self, address: u64) -> Option<&'a [u8]> {
        self.segments.iter().find_map(|(start, data)| {
            let offset = usize::try_from(address.checked_sub(*start)?).ok()?;
            data.get(offset..).filter(|rest| !rest.is_empty())
        })
    }

    pub fn text(&self, address: u64) -> Option<&'a str> {
        let bytes = self.from(address)?.split(|byte| *byte == 0).next()?;
        str::from_utf8(bytes).ok()
    }

    pub fn number(&self, address: u64) -> Option<u32> {
        let bytes = self.from(address)?.first_chunk::<4>()?;
        Some(u32::from_le_bytes(*bytes))
    }
}
