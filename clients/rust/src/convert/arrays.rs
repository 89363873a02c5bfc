//! Packed little-endian arrays inside `bytes` fields (protocol ch. 9).

use prost::bytes::Bytes;

use super::ConvertError;

/// A number as it lies in a packed array.
pub trait Packed: Copy {
    /// Bytes per element.
    const SIZE: usize;

    fn write(self, out: &mut Vec<u8>);

    /// `bytes.len() == SIZE`.
    fn read(bytes: &[u8]) -> Self;
}

macro_rules! packed {
    ($($t:ty),*) => {$(
        impl Packed for $t {
            const SIZE: usize = size_of::<$t>();

            fn write(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn read(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().expect("chunks_exact gives SIZE bytes"))
            }
        }
    )*};
}
packed!(i32, u32, i64, f32);

pub fn pack<T: Packed>(values: &[T]) -> Bytes {
    let mut out = Vec::with_capacity(values.len() * T::SIZE);
    for &v in values {
        v.write(&mut out);
    }
    out.into()
}

/// Error: a length that is no multiple of the element's size.
pub fn unpack<T: Packed>(bytes: &[u8]) -> Result<Vec<T>, ConvertError> {
    if !bytes.len().is_multiple_of(T::SIZE) {
        return Err(ConvertError(format!("{} bytes are no whole number of {}-byte elements", bytes.len(), T::SIZE)));
    }
    Ok(bytes.chunks_exact(T::SIZE).map(T::read).collect())
}

/// bfloat16 is the upper half of a float32.
pub fn unpack_bf16(bytes: &[u8]) -> Result<Vec<f32>, ConvertError> {
    if !bytes.len().is_multiple_of(2) {
        return Err(ConvertError(format!("{} bytes are no whole number of 2-byte elements", bytes.len())));
    }
    Ok(bytes.chunks_exact(2).map(|b| f32::from_le_bytes([0, 0, b[0], b[1]])).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_endian() {
        assert_eq!(pack(&[1i32, -2])[..], [1, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff]);
        assert_eq!(pack(&[1.0f32])[..], [0, 0, 0x80, 0x3f]);
        assert_eq!(unpack::<i64>(&[2, 0, 0, 0, 0, 0, 0, 0]).unwrap(), [2]);
        assert_eq!(unpack_bf16(&[0x80, 0x3f]).unwrap(), [1.0]);
    }

    #[test]
    fn a_torn_array_is_an_error() {
        assert!(unpack::<i32>(&[1, 2, 3]).is_err());
        assert!(unpack::<i64>(&[0; 12]).is_err());
        assert!(unpack_bf16(&[0; 3]).is_err());
    }
}
