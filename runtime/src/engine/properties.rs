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
    /// Returns the kind of a step's outputs: logits or hidden states. Methods with "logits" in
    /// their names return hidden states for the second kind.
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

    /// Returns the smallest number of rows of an addition for which each row's results have the
    /// same bits as in any larger addition. Returns 1 with AMX tiles and without exact batches,
    /// because then results depend on the number of rows. Chunks of a prompt must begin at
    /// multiples of 16.
    pub fn min_rows(&self) -> u32 {
        let own = || self.loaded.program.min_rows(self.loaded.exact_batch);
        self.ranks.as_ref().map_or_else(own, |member| member.min_rows)
    }

    /// Returns the maximum number of additions of a step.
    pub fn max_additions(&self) -> u32 {
        self.loaded.additions
    }

    /// Returns the declared states of a sequence, and the bytes of the states of all sequences. The
    /// bytes do not include saved copies of states.
    pub fn states(&self) -> (&[State], u64) {
        let sequences = &self.loaded.store.sequences;
        (sequences.declared_states(), sequences.iter().map(|sequence| sequence.states.memory().bytes()).sum())
    }

    /// Returns the bytes of weights that are locked in memory
    /// ([`EngineOptions::lock`](crate::engine::EngineOptions::lock)).
    pub fn locked_bytes(&self) -> u64 {
        self.loaded.locked
    }

    /// Returns the bytes of the states of all sequences. Bytes that several sequences share are
    /// counted separately.
    pub fn state_bytes(&self) -> StateBytes {
        self.loaded.store.sequences.bytes()
    }

    /// Returns the values, after the last step, of the first sequence's states of fixed size.
    pub fn state_values(&self) -> impl Iterator<Item = StateValues<'_>> {
        self.first().into_iter().flat_map(|sequence| sequence.states.values())
    }

    /// Returns the maximum number of tokens of a sequence.
    pub fn context(&self) -> u32 {
        self.loaded.context
    }

    /// Returns the maximum number of tokens of a step.
    pub fn max_tokens(&self) -> u32 {
        self.loaded.program.max_tokens
    }

    /// Returns the maximum number of rows of a step that have outputs.
    pub fn max_outputs(&self) -> u32 {
        self.loaded.program.output.most(self.loaded.program.max_tokens)
    }

    /// Returns whether attention is not causal. A step must then contain the whole text, because
    /// every token attends to all others.
    pub fn reads_whole(&self) -> bool {
        self.loaded.program.reads_whole()
    }

    /// Returns the size of the vocabulary.
    pub fn vocabulary(&self) -> u32 {
        self.loaded.program.vocabulary
    }

    /// Returns the number of threads of the engine's pool.
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

    /// Returns the encoded tokenizer and chat template from the plan.
    pub fn tokenizer(&self) -> &[u8] {
        &self.loaded.tokenizer
    }

    /// Returns the expert cache; `None` if experts are not streamed.
    pub fn stream(&self) -> Option<&store::ExpertCache> {
        self.loaded.store.experts.as_ref().map(Experts::store)
    }

    /// Returns counts of the advice that the system's page cache got; `None` if experts are not in
    /// mapped files.
    pub fn advice_counts(&self) -> Option<AdviceCounts> {
        self.loaded.store.advice.as_ref().map(Advice::advice_counts)
    }

    /// Returns how well experts were predicted; `None` if experts are not streamed.
    pub fn predictions(&self) -> Option<predict::Report> {
        self.loaded.store.experts.as_ref().map(Experts::predictions)
    }

    /// Returns, for each kind of memory such as weights and states, the resident bytes and the
    /// bytes in large pages.
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

    /// Returns the NUMA nodes that hold the memory of each rank of this process, or each copy of
    /// the weights. The list is empty without homes.
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

    /// Returns the time statistics since the last call, and resets them. Times of tasks and stalls
    /// need [`EngineOptions::stats`](super::EngineOptions::stats).
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
