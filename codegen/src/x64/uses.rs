//! Users of each value. Selection needs them to decide whether an instruction can be deferred to
//! its user.
//!
//! ```text
//! %m = cmp_gt i32x16 %a, %b           used once, as a mask in the same body: can be deferred
//! %c = select f32x16 %m, %x, %y       vpcmpgtd k1, ...; vblendmps zmm{k1}, ...
//! ```

use ixc_ir::kernel::{Elem, Kernel, Stmt, Type, ValueId};

use super::families::{BinaryOp, Comparison, Computation, Family};

/// Property that all users of a value have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consumer {
    /// The value has no users.
    None,
    /// An `and`, `or` or `xor` in the same body.
    Bitwise,
    /// A sum of 32-bit integers in the same body.
    Sum,
    /// The mask of a choice in the same body.
    Choice,
    /// The users have nothing in common.
    Mixed,
}

/// Number of uses of each value, and their common property.
pub struct Uses {
    count: Vec<u32>,
    consumer: Vec<Consumer>,
    foldable: Vec<u32>,
    /// Number of the loop body that defines each value; 0 is the body of the kernel.
    body: Vec<u32>,
    bodies: u32,
}

impl Uses {
    /// Counts the uses in a kernel.
    pub fn collect(kernel: &Kernel) -> Uses {
        let n = kernel.values.len();
        let mut uses = Uses {
            count: vec![0; n],
            consumer: vec![Consumer::None; n],
            foldable: vec![0; n],
            body: vec![0; n],
            bodies: 1,
        };
        uses.visit(&kernel.body, 0);
        uses
    }

    /// Returns the number of uses of a value.
    pub fn count(&self, value: ValueId) -> u32 {
        self.count[value.index()]
    }

    /// Returns the property that the users of a value share.
    pub fn consumer(&self, value: ValueId) -> Consumer {
        self.consumer[value.index()]
    }

    /// Whether every use of a splat of 32-bit lanes could read the lane from memory. Such a value
    /// with few uses needs no register.
    pub fn all_fold(&self, value: ValueId) -> bool {
        self.foldable[value.index()] == self.count[value.index()]
    }

    fn visit(&mut self, body: &[Stmt], number: u32) {
        for stmt in body {
            match stmt {
                Stmt::Inst(inst) => {
                    let op = Family::from_op(inst.op).computation();
                    for (i, &v) in inst.operands.iter().enumerate() {
                        let here = self.body[v.index()] == number;
                        let consumer = match op {
                            Some(Computation::Bitwise(_)) if here => Consumer::Bitwise,
                            Some(Computation::Binary(BinaryOp::IAdd)) if here && inst.ty.elem == Elem::I32 => {
                                Consumer::Sum
                            }
                            Some(Computation::Select) if here && i == 0 => Consumer::Choice,
                            // No other op can be merged with the op that defines its operand.
                            Some(_) | None => Consumer::Mixed,
                        };
                        self.add(v, consumer);
                        let folds = here && op.is_some_and(|op| folds(op, i, inst.ty));
                        self.foldable[v.index()] += u32::from(folds);
                    }
                    if let Some(result) = inst.result {
                        self.body[result.index()] = number;
                    }
                }
                Stmt::For(f) => {
                    let inner = self.bodies;
                    self.bodies += 1;
                    for carry in &f.carries {
                        self.add(carry.init, Consumer::Mixed);
                        self.body[carry.inner.index()] = inner;
                    }
                    self.visit(&f.body, inner);
                    for carry in &f.carries {
                        self.add(carry.next, Consumer::Mixed);
                        self.body[carry.result.index()] = number;
                    }
                }
                Stmt::LoadIndex { .. } => {}
            }
        }
    }

    fn add(&mut self, value: ValueId, consumer: Consumer) {
        self.count[value.index()] += 1;
        let known = &mut self.consumer[value.index()];
        *known = if *known == Consumer::None || *known == consumer { consumer } else { Consumer::Mixed };
    }
}

/// Whether an op can read operand number `i` as one 32-bit lane in memory, broadcast to all lanes.
fn folds(op: Computation, i: usize, ty: Type) -> bool {
    if ty.lanes == 1 {
        return false;
    }
    match op {
        Computation::Binary(op) => match op {
            BinaryOp::Add | BinaryOp::Mul => true,
            BinaryOp::Sub | BinaryOp::Div | BinaryOp::Min | BinaryOp::Max => i == 1,
            BinaryOp::IAdd | BinaryOp::IMul | BinaryOp::IMin | BinaryOp::IMax => ty.elem == Elem::I32,
            BinaryOp::ISub => ty.elem == Elem::I32 && i == 1,
            BinaryOp::Sign | BinaryOp::Dot2U8S8 | BinaryOp::Dot2S16 | BinaryOp::ShuffleBytes => false,
        },
        Computation::Fma | Computation::Bitwise(_) | Computation::Comparison(Comparison::Equal) => true,
        Computation::Comparison(Comparison::Greater | Comparison::LessFloat) | Computation::Select => i == 1,
        Computation::Dot4U8S8 => i == 2,
        // A splat with one use is read from memory in any case. On Zen 5, two products of bf16
        // pairs and two loads start per cycle. If each product loaded one factor here and the other
        // factor needed loads as well, loads would be the bottleneck.
        Computation::Dot2Bf16 => false,
        Computation::Slice
        | Computation::Combine(_)
        | Computation::SwapPairs
        | Computation::Interleave
        | Computation::Lookup
        | Computation::LookupQuarter
        | Computation::LookupByte
        | Computation::Multishift
        | Computation::Unary(_)
        | Computation::Shift(_)
        | Computation::ToBf16
        | Computation::ToBf16Pairs
        | Computation::Bf16ToF32
        | Computation::Extend(_)
        | Computation::NarrowS
        | Computation::Reduce(_) => false,
    }
}
