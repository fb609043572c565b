//! Minimum work of a call, for speeds in GB/s and GOP/s: the weight bytes to read, and the
//! multiply-adds.

use ixc_ir::kernel::{Affine, Atom, BufferKind, Kernel};

use crate::KernelSpec;

/// Number format of a kernel's multiply-adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Products of 8-bit integers, summed in integers.
    Int8,
    /// Products of bf16, summed in f32 by tile instructions.
    Bf16,
    /// Fused multiply-adds of f32.
    F32,
}

impl Arithmetic {
    /// Returns the name of the factors' type.
    pub fn name(self) -> &'static str {
        match self {
            Arithmetic::Int8 => "int8",
            Arithmetic::Bf16 => "bf16",
            Arithmetic::F32 => "f32",
        }
    }
}

/// Bytes and operations of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Number of bytes that must be read: those of weights, or of keys and values for attention.
    /// For other kernels, the number of bytes of all buffers except scratch.
    pub bytes: u64,
    /// Number of multiply-adds. Each counts as two operations.
    pub multiply_adds: u64,
    /// Number format of the multiply-adds.
    pub arithmetic: Arithmetic,
}

impl Work {
    /// Returns the work of a kernel that only moves bytes.
    pub fn of_bytes(bytes: u64) -> Work {
        Work { bytes, multiply_adds: 0, arithmetic: Arithmetic::F32 }
    }
}

/// Returns the value of an affine expression for these dims. Returns `None` if it overflows, or if
/// it contains variables.
pub fn evaluate(size: &Affine, dims: &[i64]) -> Option<i64> {
    let known = std::cell::Cell::new(true);
    let value = size.evaluate(|atom| match atom {
        Atom::Dim(d) if d.index() < dims.len() => dims[d.index()],
        Atom::Dim(_) | Atom::Var(_) => {
            known.set(false);
            0
        }
    })?;
    known.get().then_some(value)
}

/// A call of a kernel: the kernel with values for its dims.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Kernel that is called.
    pub kernel: &'a Kernel,
    /// Values of the dims.
    pub dims: &'a [i64],
}

impl Call<'_> {
    /// Returns the number of bytes of the buffer with this name, or 0 if no buffer has it.
    pub fn bytes(&self, name: &str) -> u64 {
        let buffer = self.kernel.buffers.iter().find(|buffer| buffer.name == name);
        buffer.and_then(|buffer| evaluate(&buffer.size, self.dims)).map_or(0, |size| size.max(0).unsigned_abs())
    }

    /// Returns the number of bytes of all buffers except scratch.
    pub fn all_bytes(&self) -> u64 {
        let buffers = self.kernel.buffers.iter().filter(|buffer| buffer.kind != BufferKind::Scratch);
        buffers.map(|buffer| self.bytes(&buffer.name)).sum()
    }
}

/// Returns the work of a call with these dims. Without a spec, it has only bytes and no
/// multiply-adds.
pub fn work(kernel: &Kernel, spec: Option<&KernelSpec>, dims: &[i64]) -> Work {
    let call = Call { kernel, dims };
    spec.map_or_else(|| Work::of_bytes(call.all_bytes()), |spec| spec.work(&call))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate;
    use ixc_targets::Target;

    #[test]
    fn work_counts_weight_bytes_and_multiply_adds() {
        let of = |text: &str, rows: u32| {
            let spec: KernelSpec = text.parse().unwrap();
            work(&generate(&spec, Target::AVX2).unwrap(), Some(&spec), &spec.dims_of_rows(rows))
        };
        let int8 = |bytes, multiply_adds| Work { bytes, multiply_adds, arithmetic: Arithmetic::Int8 };
        assert_eq!(of("linear format=q4_k k=512 tile=8 n=8 shape=gemv", 1), int8(8 * 288, 8 * 512));
        assert_eq!(of("linear format=q4_k k=512 tile=8 n=8 shape=gemm", 15), int8(8 * 288, 15 * 8 * 512));
        let swiglu = "swiglu gate=q8_0 up=q4_0 k=64 tile=32 n=32 out=a8_small rows=7 shape=gemm";
        assert_eq!(of(swiglu, 7), int8(32 * 2 * (34 + 18), 2 * 7 * 32 * 64));
        assert_eq!(of("attention_part group=2 d=16 dv=8 scale=1.0", 3).multiply_adds, 2 * 24 * 96);
        let rows = "attention group=2 d=16 dv=8 scale=1.0 heads=2 rows=4";
        assert_eq!([2, 3].map(|blocks| of(rows, blocks).multiply_adds), [4 * 2 * 24 * 64, 3 * 2 * 24 * 96]);
        assert_eq!(of("map function=add n=10", 1).bytes, 120);
    }
}
