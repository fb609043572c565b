//! Properties of an engine: sizes, memory, threads and statistics.

use std::sync::{Arc, PoisonError};

use ixc_ir::plan::{Output, State};
use ixc_targets::Target;

use super::homes::{NodeUse, RankMemory};
use super::sequence::Engine;
use crate::executor::sequences::StateBytes;
use crate::executor::states::StateValues;
use crate::experts::Experts;
use crate::page_cache_hints::{Advice, AdviceCounts};
use crate::processors::PinRefusal;
use crate::stats::Stats;
use crate::storage::memory::Mapped;
use crate::storage::pages::{self, NamedRegions, PageUse};
use crate::streaming::predict;
use crate::streaming::store;

impl Engine {
    /// Returns the kind of a step's outputs: logits or hidden states. The methods named after
    /// logits return either kind.
    pub fn output(&self) -> Output {
        self.loaded.program.output
    }

    /// Returns the number of elements of one output row.
    pub fn output_width(&self) -> u32 {
        match self.loaded.program.output {
            Output::Logits { .. } => self.loaded.program.vocabulary,
            Output::Hidden { width, .. } | Output::Experts { width } => width,
        }
    }

    /// Returns the min number of rows of an addition from which results are bit-identical for any
    /// number of rows. Chunks of a prompt must begin at multiples of 16.
    pub fn min_rows(&self) -> u32 {
        let own = || self.loaded.program.min_rows(self.loaded.exact_batch);
        self.ranks.as_ref().map_or_else(own, |member| member.min_rows)
    }

    /// Returns the max additions of a step.
    pub fn max_additions(&self) -> u32 {
        self.loaded.additions
    }

    /// Returns the declared states of a sequence, and the bytes of the states of all sequences,
    /// without saved copies.
    pub fn states(&self) -> (&[State], u64) {
        let sequences = &self.loaded.store.sequences;
        (sequences.declared_states(), sequences.iter().map(|sequence| sequence.states.memory().bytes()).sum())
    }

    /// Bytes of weights that are locked in memory
    /// ([`EngineOptions::lock`](crate::engine::EngineOptions::lock)).
    pub fn locked_bytes(&self) -> u64 {
        self.loaded.locked
    }

    /// Returns the bytes of the states of all sequences, with shared and unshared bytes counted
    /// separately.
    pub fn state_bytes(&self) -> StateBytes {
        self.loaded.store.sequences.bytes()
    }

    /// Returns the states of fixed size after the last step.
    pub fn state_values(&self) -> impl Iterator<Item = StateValues<'_>> {
        self.first().into_iter().flat_map(|sequence| sequence.states.values())
    }

    /// Returns the max tokens of a sequence.
    pub fn context(&self) -> u32 {
        self.loaded.context
    }

    /// Returns the max tokens of a step.
    pub fn max_tokens(&self) -> u32 {
        self.loaded.program.max_tokens
    }

    /// Returns the max rows of a step with outputs.
    pub fn max_outputs(&self) -> u32 {
        self.loaded.program.output.most(self.loaded.program.max_tokens)
    }

    /// Returns whether attention is not causal. A step must then contain the whole text, because
    /// every token sees all others.
    pub fn reads_whole(&self) -> bool {
        self.loaded.program.reads_whole()
    }

    /// Returns the size of the vocabulary.
    pub fn vocabulary(&self) -> u32 {
        self.loaded.program.vocabulary
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.loaded.pool.threads()
    }

    /// Returns the processor of each bound thread, or the reason why threads are not bound. The
    /// caller's thread is bound only while it runs a step.
    pub fn pinned_processors(&self) -> Result<&[usize], &PinRefusal> {
        self.loaded.pinned_processors.as_deref()
    }

    /// Returns the target that kernels were generated for.
    pub fn target(&self) -> Target {
        self.loaded.target
    }

    /// Returns the architecture's name, for display.
    pub fn architecture(&self) -> &str {
        &self.loaded.architecture
    }

    /// Returns the tokenizer and chat template, as encoded in the plan.
    pub fn tokenizer(&self) -> &[u8] {
        &self.loaded.tokenizer
    }

    /// Returns the expert cache, if experts are streamed.
    pub fn stream(&self) -> Option<&store::ExpertCache> {
        self.loaded.store.experts.as_ref().map(Experts::store)
    }

    /// Returns the advice that the page cache was given, if experts stay in mapped files.
    pub fn advice_counts(&self) -> Option<AdviceCounts> {
        self.loaded.store.advice.as_ref().map(Advice::advice_counts)
    }

    /// Returns the results of predicting experts, if they are streamed.
    pub fn predictions(&self) -> Option<predict::Report> {
        self.loaded.store.experts.as_ref().map(Experts::predictions)
    }

    /// Returns the memory of weights, activations and states that is resident, and the part of it
    /// in large pages.
    pub fn pages(&self) -> Vec<PageUse> {
        let store = &self.loaded.store;
        let experts = store.experts.as_ref().map(|experts| experts.store().memory());
        let list = |what, regions| NamedRegions { what, regions };
        pages::page_use(&[
            list("mapped files", store.files.iter().map(Mapped::region).collect()),
            list("packed weights", vec![store.weights.packed_region()]),
            list("streamed experts", experts.into_iter().collect()),
            list("activations", vec![store.arena.region()]),
            list("states", store.sequences.iter().map(|sequence| sequence.states.memory()).collect()),
        ])
    }

    /// Returns the use of NUMA nodes by the memory of each rank of this process, or by each copy of
    /// the weights. Empty without homes.
    pub fn node_use(&self) -> Vec<NodeUse> {
        let (homes, store) = (self.loaded.homes.all(), &self.loaded.store);
        if let Some(member) = &self.ranks {
            let ranks = member.memory.lock().unwrap_or_else(PoisonError::into_inner);
            let mut uses: Vec<NodeUse> = ranks.iter().flat_map(RankMemory::node_use).collect();
            uses.sort_by_key(|of_rank| of_rank.rank);
            return uses;
        }
        let copy = |(rank, (home, region))| RankMemory {
            rank,
            home: Arc::clone(home),
            regions: vec![NamedRegions { what: "weights", regions: vec![region] }],
        };
        let copies: Vec<RankMemory> = (0..).zip(homes.iter().zip(store.weights.copies())).map(copy).collect();
        copies.iter().flat_map(RankMemory::node_use).collect()
    }

    /// Returns the statistics of time since the last call. Tasks and stalls need
    /// [`EngineOptions::stats`](super::EngineOptions::stats).
    pub fn take_stats(&mut self) -> Stats {
        let fresh = Stats { threads: self.loaded.stats.threads, ..Stats::default() };
        let mut stats = std::mem::replace(&mut self.loaded.stats, fresh);
        for clock in &mut self.loaded.clocks {
            let clock = clock.get_mut().unwrap_or_else(PoisonError::into_inner);
            clock.add_to(&self.loaded.program, &mut stats);
            clock.reset();
        }
        if let Some(link) = &self.loaded.store.ranks {
            stats.exchanged = link.take_counts();
        }
        stats
    }
}
