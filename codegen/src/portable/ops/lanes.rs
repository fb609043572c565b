//! Ops that move lanes or bytes.

use ixc_ir::kernel::{Inst, Op};

use super::super::PortableError;
use super::super::chunk_types::{CHUNK_BYTES, Chunks, chunk_count, chunk_type};
use super::super::lower::Lowering;

impl Lowering<'_> {
    /// Lowers an op that moves lanes or bytes.
    pub(super) fn lane_op(&mut self, inst: &Inst) -> Result<Chunks, PortableError> {
        let ty = inst.ty;
        let lane = inst.ty.elem.bytes() as usize;
        Ok(match inst.op {
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
            Op::Interleave => self.interleave(inst)?,
            Op::ShuffleBytes => self.map2(inst, Self::shuffle_bytes)?,
            Op::Multishift => self.map2(inst, Self::multishift)?,
            _ => return Err(self.unsupported_error(inst)),
        })
    }

    /// Interleaves the elements of the operand's lower and upper half.
    fn interleave(&mut self, inst: &Inst) -> Result<Chunks, PortableError> {
        let ty = inst.ty;
        let lane = ty.elem.bytes() as usize;
        let a = self.operand(inst, 0)?;
        let half = ty.bytes() as usize / 2;
        // Takes the lower half's chunks from `low`, and the upper half's from `high`.
        let unit = |low: usize, high: usize| {
            move |i: usize| (if (i / lane).is_multiple_of(2) { low } else { high }) + i / (2 * lane) * lane + i % lane
        };
        Ok(match a.len() {
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
        })
    }

    /// Interleaves 8 bytes of each operand, from byte `first` on, in units whose size is the
    /// immediate.
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
}
