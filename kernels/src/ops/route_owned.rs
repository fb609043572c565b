//! Removal of the experts of other ranks from a routing. Their slots become slots without an
//! expert.
//!
//! Slots are processed one at a time, in order, since a row has only about a dozen.

use ixc_ir::kernel::{Kernel, KernelBuilder, Op, Type};
use ixc_ir::plan::NO_EXPERT;

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors, check};
use crate::generator::reference::{Mismatch, Run, close, equal};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::spec;

spec! {
    /// Ids and weights of those experts of a row that this rank has. Ids are relative to the rank's
    /// first expert.
    pub struct RouteOwned "route_owned" {
        /// Number of slots of a row.
        pub n: u32,
        /// Id of the first expert of the rank.
        pub first: u32,
        /// Number of experts of the rank.
        pub experts: u32,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("route_owned", 1, "route_owned n=8 first=64 experts=64"),
];

impl Definition for RouteOwned {
    fn name(&self) -> String {
        format!("route_owned_n{}_f{}_e{}", self.n, self.first, self.experts)
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .read("ids", BufferContents::Ids)
            .read("p", BufferContents::Floats)
            .write("own", BufferContents::Ids)
            .write("weights", BufferContents::Floats)
    }

    fn generate(&self, name: String, _: Vectors) -> Result<Kernel, GenerateError> {
        let (RouteOwned { n, first, experts }, bytes) = (*self, i64::from(self.n) * 4);
        check(&name, "slots", n.into(), n > 0, "at least 1")?;
        let most = i32::MAX.unsigned_abs();
        check(&name, "experts", experts.into(), (1..=most).contains(&experts), format!("in 1..={most}"))?;
        check(&name, "the first expert", first.into(), first <= most - experts, format!("at most {most} - {experts}"))?;
        let mut b = KernelBuilder::new(name);
        let (ids, p) = (b.read("ids", bytes), b.read("p", bytes));
        let (own, weights) = (b.write("own", bytes), b.write("weights", bytes));
        let (int, float) = (Type::i32(1), Type::f32(1));
        let (start, count) = (b.splat_int(int, i64::from(first)), b.splat_int(int, i64::from(experts)));
        let (nobody, none) = (b.splat_int(int, i64::from(NO_EXPERT)), b.splat_f32(1, 0.0));
        b.for_each("slot", i64::from(n), |b, slot| {
            let (id, weight) = (b.load(int, ids, slot * 4), b.load(float, p, slot * 4));
            let relative = b.op(Op::ISub, int, &[id, start]);
            // Ids before the rank's first expert are negative here.
            let is_before_end = b.op(Op::CmpGt, int, &[count, relative]);
            let id = b.op(Op::Select, int, &[is_before_end, relative, nobody]);
            let is_own = b.op(Op::CmpGt, int, &[id, nobody]);
            let id = b.op(Op::Select, int, &[is_own, id, nobody]);
            b.store(own, slot * 4, id);
            let kept = b.op(Op::Select, float, &[is_own, weight, none]);
            b.store(weights, slot * 4, kept);
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let (input, output) = (run.input(), run.output());
        let relative = |id: i32| {
            let own = i64::from(id) - i64::from(self.first);
            (0..i64::from(self.experts)).contains(&own).then_some(own as i32)
        };
        let ids = input.ints("ids")?;
        let own: Vec<u8> = ids.iter().flat_map(|id| relative(*id).unwrap_or(NO_EXPERT).to_le_bytes()).collect();
        equal("own", output.get("own")?, &own)?;
        let slots = ids.into_iter().zip(input.floats("p")?).zip(output.floats("weights")?);
        for (slot, ((id, p), found)) in slots.enumerate() {
            let expected = if relative(id).is_some() { p } else { 0.0 };
            close(format_args!("weights[{slot}]"), found, expected, 0.0)?;
        }
        Ok(())
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
