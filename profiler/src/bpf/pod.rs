//! Views of plain old data as bytes.

use aya::Pod;

/// A value of zeros.
pub fn zeroed<T: Pod>() -> T {
    // SAFETY: plain old data can have any bytes.
    unsafe { std::mem::zeroed() }
}

/// The bytes of some values.
pub fn bytes<T: Pod>(values: &[T]) -> &[u8] {
    // SAFETY: plain old data has no padding, so all bytes are initialised.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// The bytes of some values, to be written.
pub fn bytes_mut<T: Pod>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: as above; and plain old data can have any bytes.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}

/// Splits a value off the front of `bytes`; `None` if they are too short or not aligned.
pub fn split<'a, T: Pod>(bytes: &mut &'a [u8]) -> Option<&'a T> {
    let (front, rest) = bytes.split_at_checked(size_of::<T>())?;
    let value = front.as_ptr().cast::<T>();
    if !value.is_aligned() {
        return None;
    }
    *bytes = rest;
    // SAFETY: long enough and aligned; plain old data can have any bytes.
    Some(unsafe { &*value })
}
