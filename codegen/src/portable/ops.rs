//! One arm per row of the op table.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{InstBuilder, Value, types};
use ixc_ir::kernel::{Address, Elem, Imm, Inst, Op, Type, ValueId};

use super::PortableError;
use super::chunk_types::{CHUNK_BYTES, Chunks, chunk_count, chunk_type};
use super::lower::Lowering;

impl Lowering<'_> {
    /// Lowers one computation and returns the chunks of its result; a store has none.
    pub(super) fn inst(&mut self, inst: &Inst) -> Result<Chunks, PortableError> {
        let ty = inst.ty;
        let lane = ty.elem.bytes() as usize;
        Ok(match inst.op {
            Op::Splat => {
                let pattern = self.scalar_bytes(inst)?;
                self.constants(ty, |i| pattern[i % lane])
            }
            Op::Bytes => {
                let Imm::Bytes(bytes) = &inst.imm else {
                    return Err(self.malformed("bytes", "bytes as its immediate"));
                };
                self.constants(ty, |i| bytes.get(i).copied().unwrap_or(0))
            }
            Op::Iota => self.constants(ty, |i| (i as u32 / 4).to_le_bytes()[i % 4]),
            Op::Index => {
                let Some(affine) = &inst.index else {
                    return Err(self.malformed("index", "an affine value"));
                };
                let value = self.affine(affine)?;
                let value = self.b.ins().ireduce(types::I32, value);
                vec![self.scalar_chunk(types::I32X4, value)]
            }

            Op::Load => self.load(ty, self.memory(inst)?)?,
            Op::LoadSplat => self.load_splat(ty, self.memory(inst)?)?,
            Op::Store => {
                let value = self.operand(inst, 0)?;
                self.store(ty, &value, self.memory(inst)?)?;
                Chunks::new()
            }

            Op::Prefetch => Chunks::new(),

            Op::Broadcast => {
                let scalar = self.operand(inst, 0)?[0];
                vec![self.splat_lowest(scalar, lane); chunk_count(ty)]
            }
            Op::Extract | Op::Slice => {
                let value = self.operand(inst, 0)?;
                let first = self.immediate(inst)? as usize * lane;
                let chunks = &value[first / CHUNK_BYTES..][..chunk_count(ty)];
                match first % CHUNK_BYTES {
                    0 => chunks.to_vec(),
                    within => vec![self.move_down(chunks[0], within)],
                }
            }
            Op::Concat => {
                let (mut low, high) = (self.operand(inst, 0)?, self.operand(inst, 1)?);
                let half = ty.bytes() as usize / 2;
                if half < CHUNK_BYTES {
                    vec![self.shuffle(low[0], high[0], |i| if i < half { i } else { (CHUNK_BYTES - half + i) % 32 })]
                } else {
                    low.extend(high);
                    low
                }
            }
            Op::JoinLo | Op::JoinHi => {
                let (a, b) = (self.operand(inst, 0)?, self.operand(inst, 1)?);
                let half = a.len() / 2;
                let range = if inst.op == Op::JoinLo { 0..half } else { half..a.len() };
                [&a[range.clone()], &b[range]].concat()
            }
            Op::Bitcast => self.map(inst, |l, a| l.cast(chunk_type(ty.elem), a))?,
            Op::UnpackLo => self.unpack(inst, 0)?,
            Op::UnpackHi => self.unpack(inst, CHUNK_BYTES / 2)?,
            Op::SwapPairs => self.map(inst, |l, a| l.shuffle(a, a, |i| i ^ lane))?,
            Op::Interleave => {
                let a = self.operand(inst, 0)?;
                let half = ty.bytes() as usize / 2;
                // Takes the lower half's chunks from `low`, and the upper half's from `high`.
                let unit = |low: usize, high: usize| {
                    move |i: usize| {
                        (if (i / lane).is_multiple_of(2) { low } else { high }) + i / (2 * lane) * lane + i % lane
                    }
                };
                match a.len() {
                    1 => vec![self.shuffle(a[0], a[0], |i| unit(0, half)(i % (2 * half)))],
                    chunks => {
                        let pairs = (0..chunks / 2).map(|i| (a[i], a[i + chunks / 2]));
                        let mut all = Chunks::new();
                        for (low, high) in pairs {
                            for first in [0, CHUNK_BYTES / 2] {
                                all.push(self.shuffle(low, high, unit(first, CHUNK_BYTES + first)));
                            }
                        }
                        all
                    }
                }
            }
            Op::ShuffleBytes => self.map2(inst, Self::shuffle_bytes)?,
            Op::Lookup => self.lookup(inst)?,
            Op::LookupQuarter => self.lookup_quarter(inst)?,
            Op::LookupByte => self.lookup_byte(inst)?,
            Op::Multishift => self.map2(inst, Self::multishift)?,

            Op::Add => self.map2(inst, |l, a, b| l.b.ins().fadd(a, b))?,
            Op::Sub => self.map2(inst, |l, a, b| l.b.ins().fsub(a, b))?,
            Op::Mul => self.map2(inst, |l, a, b| l.b.ins().fmul(a, b))?,
            Op::Div => self.map2(inst, |l, a, b| l.b.ins().fdiv(a, b))?,
            Op::Min => self.map2(inst, Self::float_min)?,
            Op::Max => self.map2(inst, Self::float_max)?,
            Op::Sqrt => self.map(inst, |l, a| l.b.ins().sqrt(a))?,
            Op::Fma => {
                let (a, b, c) = (self.operand(inst, 0)?, self.operand(inst, 1)?, self.operand(inst, 2)?);
                (0..a.len()).map(|i| self.fma(a[i], b[i], c[i])).collect()
            }

            Op::IAdd => self.map2(inst, |l, a, b| l.b.ins().iadd(a, b))?,
            Op::ISub => self.map2(inst, |l, a, b| l.b.ins().isub(a, b))?,
            Op::IMul => self.map2(inst, |l, a, b| l.b.ins().imul(a, b))?,
            Op::IMin => self.map2(inst, |l, a, b| l.b.ins().smin(a, b))?,
            Op::IMax => self.map2(inst, |l, a, b| l.b.ins().smax(a, b))?,
            Op::IAbs => self.map(inst, |l, a| l.b.ins().iabs(a))?,
            Op::Sign => self.map2(inst, |l, a, b| {
                let zero = l.constant(chunk_type(ty.elem), [0; CHUNK_BYTES]);
                // a ^ -1 - -1 is -a.
                let negative = l.b.ins().icmp(IntCC::SignedLessThan, b, zero);
                let flipped = l.b.ins().bxor(a, negative);
                let signed = l.b.ins().isub(flipped, negative);
                let is_zero = l.b.ins().icmp(IntCC::Equal, b, zero);
                l.b.ins().band_not(signed, is_zero)
            })?,
            Op::And => self.map2(inst, |l, a, b| l.b.ins().band(a, b))?,
            Op::Or => self.map2(inst, |l, a, b| l.b.ins().bor(a, b))?,
            Op::Xor => self.map2(inst, |l, a, b| l.b.ins().bxor(a, b))?,
            Op::Shl => {
                let by = self.immediate(inst)?;
                self.map(inst, |l, a| l.shl(a, by))?
            }
            Op::ShrU => {
                let by = self.immediate(inst)?;
                self.map(inst, |l, a| l.shr_u(a, by))?
            }
            Op::ShrS => {
                let by = self.immediate(inst)?;
                self.map(inst, |l, a| l.shr_s(a, by))?
            }

            Op::CmpEq => self.map2(inst, |l, a, b| l.b.ins().icmp(IntCC::Equal, a, b))?,
            Op::CmpGt => self.map2(inst, |l, a, b| l.b.ins().icmp(IntCC::SignedGreaterThan, a, b))?,
            Op::CmpLtF => self.map2(inst, |l, a, b| l.b.ins().fcmp(FloatCC::LessThan, a, b))?,
            Op::Select => {
                let (mask, a, b) = (self.operand(inst, 0)?, self.operand(inst, 1)?, self.operand(inst, 2)?);
                (0..a.len()).map(|i| self.choose(mask[i], a[i], b[i])).collect()
            }

            Op::ToF32 => self.map(inst, |l, a| l.b.ins().fcvt_from_sint(types::F32X4, a))?,
            Op::ToI32 => self.map(inst, Self::round_to_i32)?,
            Op::F16ToF32 => {
                let halves = self.operand(inst, 0)?;
                let wide = self.widen(&halves, false, chunk_count(ty));
                wide.into_iter().map(|half| self.f16_to_f32(half)).collect()
            }
            Op::F32ToF16 => {
                let wide = self.map(inst, Self::f32_to_f16)?;
                self.narrow(&wide)
            }
            Op::ToBf16 => {
                let wide = self.map(inst, Self::f32_to_bf16)?;
                self.narrow(&wide)
            }
            Op::Bf16ToF32 => {
                let bf16 = self.operand(inst, 0)?;
                let wide = self.widen(&bf16, false, chunk_count(ty));
                wide.into_iter().map(|bf16| self.bf16_to_f32(bf16)).collect()
            }
            Op::ToBf16Pairs => self.map2(inst, |l, a, b| {
                let (a, b) = (l.f32_to_bf16(a), l.f32_to_bf16(b));
                let a = l.shl(a, 16);
                let a = l.shr_u(a, 16);
                let b = l.shl(b, 16);
                let pairs = l.b.ins().bor(a, b);
                l.cast(types::I16X8, pairs)
            })?,
            Op::ExtendS => self.extend(inst, true)?,
            Op::ExtendU => self.extend(inst, false)?,
            Op::NarrowS => {
                let mut value = self.operand(inst, 0)?;
                let mut bytes = self.operand_type(inst, 0)?.elem.bytes();
                // Saturating in two steps gives the same as saturating once.
                while bytes > ty.elem.bytes() {
                    value = self.narrow(&value);
                    bytes /= 2;
                }
                value
            }

            Op::Dot2U8S8 => self.map2(inst, |l, a, b| {
                let (even, odd) = l.products_u8s8(a, b);
                l.b.ins().sadd_sat(even, odd)
            })?,
            Op::Dot2S16 => self.map2(inst, Self::dot2_s16)?,
            Op::Dot4U8S8 => {
                let (acc, u, s) = (self.operand(inst, 0)?, self.operand(inst, 1)?, self.operand(inst, 2)?);
                let ones = self.constant(types::I16X8, std::array::from_fn(|i| (i % 2 == 0).into()));
                let mut sums = Chunks::new();
                for i in 0..acc.len() {
                    let (even, odd) = self.products_u8s8(u[i], s[i]);
                    let (even, odd) = (self.dot2_s16(even, ones), self.dot2_s16(odd, ones));
                    let sum = self.b.ins().iadd(even, odd);
                    sums.push(self.b.ins().iadd(acc[i], sum));
                }
                sums
            }

            Op::Dot2Bf16 => {
                let (acc, a, b) = (self.operand(inst, 0)?, self.operand(inst, 1)?, self.operand(inst, 2)?);
                (0..acc.len()).map(|i| self.dot2_bf16(acc[i], a[i], b[i])).collect()
            }

            Op::ReduceAdd => match ty.elem {
                Elem::F32 => self.reduce(inst, |l, a, b| l.b.ins().fadd(a, b))?,
                Elem::I8 | Elem::I16 | Elem::I32 | Elem::F16 | Elem::Bf16 => {
                    self.reduce(inst, |l, a, b| l.b.ins().iadd(a, b))?
                }
            },
            Op::ReduceMax => match ty.elem {
                Elem::F32 => self.reduce(inst, Self::float_max)?,
                Elem::I8 | Elem::I16 | Elem::I32 | Elem::F16 | Elem::Bf16 => {
                    self.reduce(inst, |l, a, b| l.b.ins().smax(a, b))?
                }
            },
            Op::ReduceMin => match ty.elem {
                Elem::F32 => self.reduce(inst, Self::float_min)?,
                Elem::I8 | Elem::I16 | Elem::I32 | Elem::F16 | Elem::Bf16 => {
                    self.reduce(inst, |l, a, b| l.b.ins().smin(a, b))?
                }
            },

            Op::TileZero
            | Op::TileLoad
            | Op::TileStore
            | Op::TileDotBf16
            | Op::TileDotS8S8
            | Op::TileDotS8U8
            | Op::TileDotU8S8
            | Op::TileDotU8U8 => {
                let kernel = self.kernel.name.clone();
                return Err(PortableError::Unsupported { kernel, op: inst.op.row().mnemonic, ty });
            }
        })
    }

    /// Multiplies unsigned with signed bytes and returns words: the products of the even bytes,
    /// then of the odd ones. Every product fits: 255 * -128 and 255 * 127 are inside 16 bits. The
    /// bytes are extended in place, so that sums are in the right lanes.
    fn products_u8s8(&mut self, u: Value, s: Value) -> (Value, Value) {
        let (u, s) = (self.cast(types::I16X8, u), self.cast(types::I16X8, s));
        let low_byte = self.constant(types::I16X8, std::array::from_fn(|i| if i % 2 == 0 { 0xff } else { 0 }));
        let u_even = self.b.ins().band(u, low_byte);
        let u_odd = self.shr_u(u, 8);
        let s_even = self.shl(s, 8);
        let s_even = self.shr_s(s_even, 8);
        let s_odd = self.shr_s(s, 8);
        (self.b.ins().imul(u_even, s_even), self.b.ins().imul(u_odd, s_odd))
    }

    /// Multiplies words and adds neighbouring products. Cranelift selects x86's `pmaddwd` for
    /// exactly this.
    fn dot2_s16(&mut self, a: Value, b: Value) -> Value {
        let (a_low, b_low) = (self.b.ins().swiden_low(a), self.b.ins().swiden_low(b));
        let (a_high, b_high) = (self.b.ins().swiden_high(a), self.b.ins().swiden_high(b));
        let low = self.b.ins().imul(a_low, b_low);
        let high = self.b.ins().imul(a_high, b_high);
        self.b.ins().iadd_pairwise(low, high)
    }

    fn operand_id(&self, inst: &Inst, index: usize) -> Result<ValueId, PortableError> {
        let id = inst.operands.get(index).copied();
        id.ok_or_else(|| self.malformed(inst.op.row().mnemonic, "as many operands as the op table says"))
    }

    pub(super) fn operand(&self, inst: &Inst, index: usize) -> Result<Chunks, PortableError> {
        self.chunks(self.operand_id(inst, index)?)
    }

    fn operand_type(&self, inst: &Inst, index: usize) -> Result<Type, PortableError> {
        Ok(self.kernel.ty(self.operand_id(inst, index)?))
    }

    fn memory<'i>(&self, inst: &'i Inst) -> Result<&'i Address, PortableError> {
        inst.address.as_ref().ok_or_else(|| self.malformed(inst.op.row().mnemonic, "an address"))
    }

    pub(super) fn immediate(&self, inst: &Inst) -> Result<i64, PortableError> {
        match inst.imm {
            Imm::Int(value) => Ok(value),
            _ => Err(self.malformed(inst.op.row().mnemonic, "an integer as its immediate")),
        }
    }

    /// Returns the little-endian bytes of a scalar immediate; an integer wraps to the element's
    /// size.
    fn scalar_bytes(&self, inst: &Inst) -> Result<[u8; 8], PortableError> {
        match (&inst.imm, inst.ty.elem) {
            (Imm::Int(value), Elem::I8 | Elem::I16 | Elem::I32) => Ok(value.to_le_bytes()),
            (Imm::Float(value), Elem::F32) => Ok(u64::from(value.to_bits()).to_le_bytes()),
            _ => Err(self.malformed(inst.op.row().mnemonic, "a number of the element type as its immediate")),
        }
    }

    fn map(&mut self, inst: &Inst, mut f: impl FnMut(&mut Self, Value) -> Value) -> Result<Chunks, PortableError> {
        let a = self.operand(inst, 0)?;
        Ok(a.into_iter().map(|a| f(self, a)).collect())
    }

    pub(super) fn map2(
        &mut self,
        inst: &Inst,
        mut f: impl FnMut(&mut Self, Value, Value) -> Value,
    ) -> Result<Chunks, PortableError> {
        let (a, b) = (self.operand(inst, 0)?, self.operand(inst, 1)?);
        Ok(a.into_iter().zip(b).map(|(a, b)| f(self, a, b)).collect())
    }

    /// Interleaves 8 bytes of both operands, from `first` on, in units of the immediate's bytes.
    fn unpack(&mut self, inst: &Inst, first: usize) -> Result<Chunks, PortableError> {
        let unit = self.immediate(inst)? as usize;
        self.map2(inst, |l, a, b| {
            l.shuffle(a, b, |i| {
                let (pair, within) = (i / (2 * unit), i % unit);
                let operand = if (i / unit).is_multiple_of(2) { 0 } else { CHUNK_BYTES };
                operand + first + pair * unit + within
            })
        })
    }

    /// Widens the lanes of each chunk to twice the size, which gives two chunks; returns the first
    /// `count` chunks.
    fn widen(&mut self, chunks: &[Value], signed: bool, count: usize) -> Chunks {
        let mut wide = Chunks::new();
        for &chunk in chunks {
            let ins = self.b.ins();
            wide.push(if signed { ins.swiden_low(chunk) } else { ins.uwiden_low(chunk) });
            if wide.len() < count {
                let ins = self.b.ins();
                wide.push(if signed { ins.swiden_high(chunk) } else { ins.uwiden_high(chunk) });
            }
        }
        wide
    }

    fn extend(&mut self, inst: &Inst, signed: bool) -> Result<Chunks, PortableError> {
        let (mut value, mut ty) = (self.operand(inst, 0)?, self.operand_type(inst, 0)?);
        while ty.elem.bytes() < inst.ty.elem.bytes() {
            ty.elem = if ty.elem == Elem::I8 { Elem::I16 } else { Elem::I32 };
            value = self.widen(&value, signed, chunk_count(ty));
        }
        Ok(value)
    }

    /// Narrows lanes to half the size with signed saturation; two chunks become one.
    fn narrow(&mut self, chunks: &[Value]) -> Chunks {
        chunks.chunks(2).map(|pair| self.b.ins().snarrow(pair[0], *pair.last().unwrap_or(&pair[0]))).collect()
    }

    /// Folds the upper half onto the lower until one lane remains.
    fn reduce(
        &mut self,
        inst: &Inst,
        mut f: impl FnMut(&mut Self, Value, Value) -> Value,
    ) -> Result<Chunks, PortableError> {
        let mut chunks = self.operand(inst, 0)?;
        while chunks.len() > 1 {
            let upper = chunks.split_off(chunks.len() / 2);
            chunks = chunks.into_iter().zip(upper).map(|(low, high)| f(self, low, high)).collect();
        }
        let mut value = chunks[0];
        let mut bytes = (self.operand_type(inst, 0)?.bytes() as usize).min(CHUNK_BYTES);
        while bytes > inst.ty.elem.bytes() as usize {
            bytes /= 2;
            let upper = self.move_down(value, bytes);
            value = f(self, value, upper);
        }
        Ok(vec![value])
    }
}
