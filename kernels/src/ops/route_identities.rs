//! Removal of identity experts, which return their input, from a routing. Their slots become slots
//! without an expert, and their weights are summed.
//!
//! Slots are processed one at a time, in order, since a row has only about a dozen.

use ixc_ir::kernel::{Kernel, KernelBuilder, Op, Type};
use ixc_ir::plan::NO_EXPERT;

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors, check};
use crate::generator::reference::{Mismatch, Run, UNIT, close, equal};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::spec;

spec! {
    /// Ids and weights of those experts of a row that have matrices, and the sum of the weights of
    /// identity experts.
    pub struct RouteIdentities "route_identities" {
        /// Number of slots of a row.
        pub n: u32,
        /// Number of experts that have matrices. Experts with higher ids are identities.
        pub experts: u32,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("route_identities", 1, "route_identities n=12 experts=512"),
];

impl Definition for RouteIdentities {
    fn name(&self) -> String {
        format!("route_identities_n{}_e{}", self.n, self.experts)
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .read("ids", BufferContents::Ids)
            .read("p", BufferContents::Floats)
            .write("own", BufferContents::Ids)
            .write("weights", BufferContents::Floats)
            .write("passed", BufferContents::Floats)
    }

    fn generate(&self, name: String, _: Vectors) -> Result<Kernel, GenerateError> {
        let (RouteIdentities { n, experts }, bytes) = (*self, i64::from(self.n) * 4);
        check(&name, "slots", n.into(), n > 0, "at least 1")?;
        let most = i32::MAX.unsigned_abs();
        check(&name, "experts", experts.into(), (1..=most).contains(&experts), format!("in 1..={most}"))?;
        let mut b = KernelBuilder::new(name);
        let (ids, p) = (b.read("ids", bytes), b.read("p", bytes));
        let (own, weights, passed) = (b.write("own", bytes), b.write("weights", bytes), b.write("passed", 4));
        let (int, float) = (Type::i32(1), Type::f32(1));
        let (count, nobody) = (b.splat_int(int, i64::from(experts)), b.splat_int(int, i64::from(NO_EXPERT)));
        let none = b.splat_f32(1, 0.0);
        let sum = b.for_carry("slot", i64::from(n), &[none], |b, slot, sum| {
            let (id, weight) = (b.load(int, ids, slot * 4), b.load(float, p, slot * 4));
            let is_own = b.op(Op::CmpGt, int, &[count, id]);
            let id = b.op(Op::Select, int, &[is_own, id, nobody]);
            b.store(own, slot * 4, id);
            let kept = b.op(Op::Select, float, &[is_own, weight, none]);
            b.store(weights, slot * 4, kept);
            let passed = b.op(Op::Select, float, &[is_own, none, weight]);
            vec![b.add(sum[0], passed)]
        });
        b.store(passed, 0, sum[0]);
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let (input, output) = (run.input(), run.output());
        let is_own = |id: i32| i64::from(id) < i64::from(self.experts);
        let slots = || input.ints("ids").and_then(|ids| Ok(ids.into_iter().zip(input.floats("p")?)));
        let own: Vec<u8> = slots()?.flat_map(|(id, _)| if is_own(id) { id } else { NO_EXPERT }.to_le_bytes()).collect();
        equal("own", output.get("own")?, &own)?;
        for (slot, ((id, p), found)) in slots()?.zip(output.floats("weights")?).enumerate() {
            close(format_args!("weights[{slot}]"), found, if is_own(id) { p } else { 0.0 }, 0.0)?;
        }
        let passed = slots()?.filter(|(id, _)| !is_own(*id)).map(|(_, p)| p);
        let (sum, size) = passed.fold((0.0, 0.0), |(sum, size), p| (sum + p, size + p.abs()));
        close(format_args!("passed"), output.floats("passed")?[0], sum, size * f64::from(self.n) * UNIT)
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
