//! Groups of experts: each expert id is divided by the number of experts in a group, a power of
//! two.

use ixc_ir::kernel::{Kernel, KernelBuilder, Op, Type};

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors, check};
use crate::generator::reference::{Mismatch, Run, equal};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::spec;
use crate::generator::vectors::for_vectors;

spec! {
    /// Group numbers of the experts of one row.
    pub struct ExpertGroups "expert_groups" {
        /// Number of expert ids of a row.
        pub n: u32,
        /// Number of experts in a group, a power of two.
        pub size: u32,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("expert_groups", 1, "expert_groups n=64 size=2"),
];

impl Definition for ExpertGroups {
    fn name(&self) -> String {
        format!("expert_groups_n{}_s{}", self.n, self.size)
    }

    fn signature(&self) -> Signature {
        Signature::new().read("ids", BufferContents::Ids).write("groups", BufferContents::Ids)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let (ExpertGroups { n, size }, bytes) = (*self, i64::from(self.n) * 4);
        check(&name, "experts of a group", size.into(), size.is_power_of_two(), "a power of two")?;
        let mut b = KernelBuilder::new(name);
        let (ids, groups) = (b.read("ids", bytes), b.write("groups", bytes));
        for_vectors(&mut b, vectors.lanes, n, |b, at, lanes| {
            let id = b.load(Type::i32(lanes), ids, at.clone() * 4);
            let group = if size > 1 { b.shift(Op::ShrU, id, i64::from(size.trailing_zeros())) } else { id };
            b.store(groups, at * 4, group);
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let ids = run.input().ints("ids")?;
        let groups: Vec<u8> = ids.into_iter().flat_map(|id| (id.cast_unsigned() / self.size).to_le_bytes()).collect();
        equal("groups", run.output().get("groups")?, &groups)
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
