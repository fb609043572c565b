//! `shard`: divides a model among ranks, and returns the graph of one of them.
//!
//! The option `by` selects the division. `layers` gives each rank a range of ops; ranges meet where
//! the fewest values cross (`layers.rs`). `experts` gives each rank some of the experts of each
//! layer (`experts.rs`). `tensors` cuts products by rows and columns, and attention by heads
//! (`tensors.rs`). The pass reads ops and shapes only, so it knows no architecture.
//!
//! The pass runs before `fuse`, which then sees the products of one rank. A sum over ranks lies
//! between a product and the addition of its residual, so `fuse` does not fuse the residual into
//! that product.
//!
//! Needs: a graph from a frontend, before `fuse`. Leaves: the same graph if there is one rank.
//! Otherwise, leaves the graph of rank `rank`, with only its weights and states. The graphs of all
//! ranks match ([`ixc_ir::graph::ranks`]).
//!
//! ```text
//!   %1, %2 = route %logits, _, _ {top_k = 2, ...} : i32[T, 2], f32[T, 2]
//!   %3 = dequantise @w : f32[8, 4, 4]
//!   %4 = expert.matmul %x, %1, %3 : f32[T, 2, 4]
//!   %5 = expert.combine %4, %2 : f32[T, 4]
//! ```
//! becomes for rank 1 of 2, by `experts`,
//! ```text
//!   %1 = ranks.begin {rank = 1, ranks = 2} : token[1, 2]
//!   %2, %3 = route %logits, _, _ {top_k = 2, ...} : i32[T, 2], f32[T, 2]
//!   %4, %5 = route.owned %2, %3 {first = 4, experts = 4} : i32[T, 2], f32[T, 2]
//!   %6 = dequantise @w : f32[4, 4, 4]
//!   %7 = expert.matmul %x, %4, %6 : f32[T, 2, 4]
//!   %8 = expert.combine %7, %5 : f32[T, 4]
//!   %9, %10 = all_reduce %1, %8 : f32[T, 4], token[1, 2]
//! ```

mod cut;
mod emit;
mod experts;
mod layers;
mod tensors;

use ixc_ir::graph::{Group, Module};

use self::emit::Emitter;
use crate::error::{PassError, ShardError};
use crate::options::{OptionValue, PassOptions, pass_options};
use crate::pass::{Context, Pass, Run};

/// Entry of this pass in the list of passes.
pub static PASS: Pass = Pass {
    name: "shard",
    doc: "Divides the model among ranks and keeps the part of one, if `ranks` is more than 1.",
    options: ShardOptions::ROWS,
    run: Run::Graph(run),
};

pass_options! {
    /// Options of the pass.
    pub struct ShardOptions for "shard" {
        #[doc = "Number of ranks; 1 changes nothing."]
        pub ranks: u32 = 1,
        #[doc = "Rank whose graph the pass returns, from 0."]
        pub rank: u32 = 0,
        #[doc = "Division of the model: by layers, by experts, or by rows and columns of weights (tensors)."]
        pub by: Division = Division::Layers,
    }
}

pub use ixc_ir::plan::RankDivision as Division;

impl OptionValue for Division {
    const EXPECTED: &'static str = "tensors, experts or layers";
    fn read(text: &str) -> Option<Division> {
        Division::ALL.into_iter().find(|by| by.word() == text)
    }
    fn text(&self) -> String {
        self.word().to_string()
    }
}

/// Runs the pass.
///
/// # Errors
/// [`PassError::Shard`].
pub fn run(module: Module, context: &Context<'_>) -> Result<Module, PassError> {
    let ShardOptions { ranks, rank, by } = context.options.get();
    if ranks == 1 && rank == 0 {
        return Ok(module);
    }
    let group = Group { rank, ranks };
    if !group.is_valid() {
        return Err(ShardError::Rank { rank, ranks }.into());
    }
    let mut divided = Module::default();
    for function in &module.functions {
        let mut emitter = Emitter::new(&module, function, by, group, divided)?;
        match by {
            Division::Tensors => tensors::emit(&mut emitter)?,
            Division::Experts => experts::emit(&mut emitter)?,
            Division::Layers => layers::emit(&mut emitter)?,
        }
        divided = emitter.finish();
    }
    Ok(divided)
}
