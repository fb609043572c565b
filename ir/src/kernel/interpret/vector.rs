//! Vector values of the interpreter: 64 bytes that can be read and written as lanes of any type.

use crate::kernel::{Elem, Type};

/// A vector of the maximum width. Bytes beyond the lanes of a value's type are ignored.
#[derive(Clone, Copy)]
pub struct Vector(
    /// The bytes of the lanes, little-endian, the lowest lane first.
    pub [u8; Type::MAX_BYTES as usize],
);

/// Type that a lane can be read and written as.
pub trait Lane: Copy {
    /// Returns the lane at index `lane`.
    fn read(vector: &Vector, lane: usize) -> Self;
    /// Overwrites the lane at index `lane`.
    fn write(self, vector: &mut Vector, lane: usize);
}

macro_rules! lane {
    ($($ty:ident)*) => {$(
        impl Lane for $ty {
            #[inline]
            fn read(vector: &Vector, lane: usize) -> Self {
                $ty::from_le_bytes(vector.0.as_chunks().0[lane])
            }

            #[inline]
            fn write(self, vector: &mut Vector, lane: usize) {
                vector.0.as_chunks_mut().0[lane] = self.to_le_bytes();
            }
        }
    )*};
}

lane! { u8 i8 u16 i16 u32 i32 f32 }

impl Vector {
    /// A vector of zeros.
    pub const ZERO: Vector = Vector([0; Type::MAX_BYTES as usize]);

    /// Returns the lane at index `lane`.
    #[inline]
    pub fn lane<T: Lane>(&self, lane: usize) -> T {
        T::read(self, lane)
    }

    /// Returns a vector whose first `lanes` lanes are given by `value`. All other lanes are zero.
    #[inline]
    pub fn from_lanes<T: Lane>(lanes: usize, mut value: impl FnMut(usize) -> T) -> Vector {
        let mut vector = Vector::ZERO;
        for i in 0..lanes {
            value(i).write(&mut vector, i);
        }
        vector
    }

    /// Returns an integer lane of the element's width, sign-extended.
    #[inline]
    pub fn int(&self, elem: Elem, lane: usize) -> i64 {
        match elem {
            Elem::I8 => i64::from(self.lane::<i8>(lane)),
            Elem::I16 | Elem::F16 | Elem::Bf16 => i64::from(self.lane::<i16>(lane)),
            Elem::I32 | Elem::F32 => i64::from(self.lane::<i32>(lane)),
        }
    }

    /// Returns a vector of type `ty` from integers, each truncated to the element's width.
    #[inline]
    pub fn from_ints(ty: Type, mut value: impl FnMut(usize) -> i64) -> Vector {
        let lanes = usize::from(ty.lanes);
        match ty.elem {
            Elem::I8 => Vector::from_lanes(lanes, |i| value(i) as i8),
            Elem::I16 | Elem::F16 | Elem::Bf16 => Vector::from_lanes(lanes, |i| value(i) as i16),
            Elem::I32 | Elem::F32 => Vector::from_lanes(lanes, |i| value(i) as i32),
        }
    }

    /// Returns a vector whose lowest bytes are the `bytes` bytes from byte `first` on.
    pub fn bytes_from(&self, first: usize, bytes: usize) -> Vector {
        let mut vector = Vector::ZERO;
        vector.0[..bytes].copy_from_slice(&self.0[first..first + bytes]);
        vector
    }

    /// Returns `bytes` bytes of `a` from `a_first` on, followed by the same number of bytes of `b`
    /// from `b_first` on.
    pub fn join(a: &Vector, b: &Vector, a_first: usize, b_first: usize, bytes: usize) -> Vector {
        let mut vector = a.bytes_from(a_first, bytes);
        vector.0[bytes..2 * bytes].copy_from_slice(&b.0[b_first..b_first + bytes]);
        vector
    }
}
