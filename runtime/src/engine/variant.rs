//! Variants: other plans of the same model that a loaded engine can run. They use the engine's
//! weights, states and threads. The tuner uses them to find the fastest plan.
//!
//! ```no_run
//! # use ixc_runtime::engine::Engine;
//! # fn faster(engine: &mut Engine, plan: &ixc_ir::plan::Plan<ixc_ir::kernel::Kernel>) -> Result<(), Box<dyn std::error::Error>> {
//! let mut other = engine.variant(plan)?;
//! engine.step(&[1], &[0])?; // as it was loaded
//! engine.exchange(&mut other)?;
//! engine.truncate(0);
//! engine.step(&[1], &[0])?; // as the other plan says
//! # Ok(()) }
//! ```
//!
//! Loading a second plan of the model would take the memory of its weights twice. It would also
//! distort measurements, because the placement of pages in memory changes the speed.
//!
//! Invariant: a variant has the weights, states, rotary tables and routings of the engine's plan,
//! in the same order and at the same addresses. Only its steps, kernels and buffers differ.
//! Invariant: the engine's arena, scratch memory and memory for chosen cache slots have room for
//! the largest variant. They grow within the budget, and never shrink.

use std::sync::{Arc, Mutex};

use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{Plan, RowInput};

use super::load::{self, LoadError};
use super::{BackendKind, Engine};
use crate::execute::{Backend, PartResults};
use crate::plan_check::{check_plan, work};
use crate::program::{Program, Routing};
use crate::saved::Digest;
use crate::saved::identity;
use crate::stats::Clock;
use crate::storage::memory::Memory;

/// A plan that an engine can run instead of the plan that it loaded.
#[derive(Debug)]
pub struct Variant {
    program: Program,
    backend: Backend,
    parts: PartResults,
    clocks: Vec<Mutex<Clock>>,
    plan_digest: Digest,
    /// Token that identifies the engine to which the variant belongs.
    owner: Arc<()>,
}

fn kind_of(backend: &Backend) -> BackendKind {
    match backend {
        Backend::Native(_) => BackendKind::Native,
        Backend::Emulated(_) => BackendKind::Emulated,
        Backend::Interpreter { .. } => BackendKind::Interpreter,
    }
}

impl Engine {
    /// Checks another plan of the same model, generates its code, and enlarges the engine's memory
    /// if the plan needs more.
    ///
    /// # Errors
    /// See [`Engine::load`], including the budget. [`LoadError::OtherPlan`] if experts are
    /// streamed, or if the plan has other weights, states or rows.
    pub fn variant(&mut self, plan: &Plan<Kernel>) -> Result<Variant, LoadError> {
        let program = check_plan(plan)?;
        work(plan, self.loaded.context)?;
        let loaded = &self.loaded;
        let routing = |routing: &Routing| (routing.top_k, routing.experts, routing.partial);
        let inputs = |program: &Program| {
            let routings: Vec<_> = program.routings.iter().map(routing).collect();
            (routings, program.ngrams.clone())
        };
        let lacks = |input: &RowInput| loaded.store.inputs.rows_of(*input).is_none();
        // Streamed experts are requested by window numbers, and an expert cache is made for the
        // windows of one plan only.
        let streamed = loaded.store.experts.is_some() || loaded.store.advice.is_some();
        if streamed
            || self.is_divided()
            || identity::of_memory(plan) != loaded.memory_digest
            || inputs(&program) != inputs(&loaded.program)
            || program.row_inputs.iter().any(lacks)
        {
            return Err(LoadError::OtherPlan { streamed });
        }
        let store = &loaded.store;
        let more = |memory: &Memory, bytes: u64| bytes.saturating_sub(memory.region().bytes());
        let scratch = store.scratch.iter().map(|scratch| more(scratch, program.scratch_bytes));
        let chosen = store.chosen.iter().map(|chosen| more(chosen, program.chosen_bytes));
        let grows = scratch.chain(chosen).fold(more(&store.arena, plan.arena_bytes), u64::saturating_add);
        let parts = program.part_bytes.saturating_mul(loaded.additions.into());
        let taken = loaded.budget.map(|(budget, taken)| (budget, taken.saturating_add(grows)));
        if let Some((budget, taken)) = taken {
            let needed = taken.saturating_add(parts);
            if needed > budget {
                return Err(LoadError::Larger { budget, needed });
            }
        }
        let backend = load::backend(kind_of(&loaded.backend), plan.kernels.clone(), loaded.target)?;
        let _home = loaded.homes.enter();
        let parts = PartResults::new(&program, loaded.additions)?;
        let clocks = loaded.clocks.iter().map(|_| Mutex::new(Clock::new(&program))).collect();
        let has_arena = loaded.store.arena.region().bytes() >= plan.arena_bytes;
        if !has_arena {
            self.forget_logits();
            self.loaded.store.arena = Memory::zeroed("the arena", plan.arena_bytes, true)?;
        }
        for scratch in &mut self.loaded.store.scratch {
            if scratch.region().bytes() < program.scratch_bytes {
                *scratch = Memory::zeroed("scratch memory", program.scratch_bytes, false)?;
            }
        }
        for chosen in &mut self.loaded.store.chosen {
            if chosen.region().bytes() < program.chosen_bytes {
                *chosen = Memory::zeroed("chosen places", program.chosen_bytes, false)?;
            }
        }
        self.loaded.budget = taken;
        let plan_digest = identity::of_plan(plan, self.loaded.context);
        Ok(Variant { program, backend, parts, clocks, plan_digest, owner: Arc::clone(&self.loaded.owner) })
    }

    /// Swaps the engine's plan and a variant. Later steps run the variant's plan, and `variant`
    /// then holds the previous plan. Sequences are kept. Statistics that were not taken before are
    /// lost.
    ///
    /// # Errors
    /// [`LoadError::OtherPlan`] if the variant belongs to another engine.
    pub fn exchange(&mut self, variant: &mut Variant) -> Result<(), LoadError> {
        if !Arc::ptr_eq(&variant.owner, &self.loaded.owner) {
            return Err(LoadError::OtherPlan { streamed: false });
        }
        self.forget_logits();
        self.take_stats();
        let loaded = &mut self.loaded;
        std::mem::swap(&mut loaded.program, &mut variant.program);
        std::mem::swap(&mut loaded.backend, &mut variant.backend);
        std::mem::swap(&mut loaded.store.parts, &mut variant.parts);
        std::mem::swap(&mut loaded.clocks, &mut variant.clocks);
        std::mem::swap(&mut loaded.plan_digest, &mut variant.plan_digest);
        Ok(())
    }
}
