//! Digests of plans and weights. A saved state can be loaded only with the same weights and a plan
//! of the same computation.
//!
//! The digest of a plan covers its computation: target, states, rotary tables, kernels and steps,
//! but not the paths of its files. The digest of weights covers some bytes from the middle of each
//! weight. Two models of one architecture differ in nearly all of them.

use std::fmt;

use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{Output, Plan, WeightFile};
use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;

use crate::storage::memory::Mapped;
use crate::storage::weight_source::WeightSource;

/// Bytes of a weight that are read for the digest.
const SAMPLE_BYTES: u64 = 1024;

/// A 128-bit hash that identifies a plan, weights or tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 16]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The plan and weights that a state belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Digest of the plan.
    pub plan: Digest,
    /// Digest of the weights.
    pub weights: Digest,
}

impl Digest {
    fn from_hasher(hasher: &SipHasher13) -> Digest {
        Digest(hasher.finish128().as_bytes())
    }

    /// Returns the digest of this digest, followed by tokens.
    #[must_use]
    pub fn with(self, tokens: &[u32]) -> Digest {
        let mut hasher = SipHasher13::new();
        hasher.write(&self.0);
        tokens.iter().for_each(|token| hasher.write(&token.to_le_bytes()));
        Digest::from_hasher(&hasher)
    }
}

/// The bytes of a weight that its digest covers: an index into the mapped files, and a byte range.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    file: usize,
    offset: u64,
    bytes: u64,
}

/// Adds a field to the hash: its length, then its bytes.
fn add(hasher: &mut SipHasher13, bytes: Result<Vec<u8>, postcard::Error>) {
    let bytes = bytes.unwrap_or_default();
    hasher.write(&(bytes.len() as u64).to_le_bytes());
    hasher.write(&bytes);
}

/// Returns the digest of a plan's computation with a context of `context` positions. Fields that
/// cannot be encoded count as empty.
pub(crate) fn of_plan(plan: &Plan<Kernel>, context: u32) -> Digest {
    let mut hasher = SipHasher13::new();
    let mut add = |bytes| add(&mut hasher, bytes);
    let Plan { architecture, target, max_tokens, vocabulary, states, buffers, kernels, steps, .. } = plan;
    add(postcard::to_allocvec(&(architecture, target, max_tokens, vocabulary, states, buffers)));
    plan.ropes.iter().for_each(|table| add(postcard::to_allocvec(&table.for_context(context))));
    plan.weights.iter().for_each(|weight| add(postcard::to_allocvec(&(&weight.name, weight.format, &weight.shape))));
    kernels.iter().for_each(|kernel| add(postcard::to_allocvec(kernel)));
    steps.iter().for_each(|step| add(postcard::to_allocvec(step)));
    Digest::from_hasher(&hasher)
}

/// Returns the digest of a rank's plan: of everything but the paths of its files.
pub(crate) fn of_rank(plan: &Plan<Kernel>) -> Digest {
    let mut hasher = SipHasher13::new();
    hasher.write(&of_plan(plan, 0).0);
    let mut add = |bytes| add(&mut hasher, bytes);
    let Plan { ranks, output, expert_groups, buckets, own_weight_bytes, context_length, logits, .. } = plan;
    add(postcard::to_allocvec(&(ranks, output, expert_groups, buckets, own_weight_bytes, context_length, logits)));
    plan.ropes.iter().for_each(|table| add(postcard::to_allocvec(table)));
    plan.derived.iter().for_each(|derived| add(postcard::to_allocvec(derived)));
    plan.weights.iter().for_each(|weight| add(postcard::to_allocvec(weight)));
    Digest::from_hasher(&hasher)
}

/// Returns the digest of the properties that an engine's memory is made for: weights with their
/// files, states, rotary tables, and rows of a step. Two plans with the same digest are of the same
/// model; only the division into kernels may differ.
pub(crate) fn of_memory(plan: &Plan<Kernel>) -> Digest {
    let mut hasher = SipHasher13::new();
    let mut add = |bytes| add(&mut hasher, bytes);
    let Plan { architecture, target, max_tokens, context_length, vocabulary, files, derived, states, .. } = plan;
    add(postcard::to_allocvec(&(architecture, target, max_tokens, context_length, vocabulary, files, states)));
    let Plan { own_weight_bytes, expert_groups, ropes, buckets, output, takes, gives, .. } = plan;
    // The softmax kernel's number depends on the number of kernels, which may differ between the
    // two plans.
    let output = match output {
        Output::Logits { .. } => None,
        Output::Hidden { .. } | Output::Experts { .. } => Some(output),
    };
    add(postcard::to_allocvec(&(own_weight_bytes, expert_groups, ropes, buckets, output, takes, gives)));
    derived.iter().for_each(|derived| add(postcard::to_allocvec(derived)));
    plan.weights.iter().for_each(|weight| add(postcard::to_allocvec(weight)));
    Digest::from_hasher(&hasher)
}

/// Returns the byte ranges at which a plan's weights are sampled.
pub(crate) fn samples(plan: &Plan<Kernel>) -> Vec<Sample> {
    let sample = |file: usize, offset: u64, bytes: u64| {
        let some = bytes.min(SAMPLE_BYTES);
        Sample { file, offset: offset.saturating_add((bytes - some) / 2), bytes: some }
    };
    let of_weight = |weight: &ixc_ir::plan::PlanWeight| match weight.file {
        WeightFile::Source(file) => Some(sample(file as usize, weight.offset, weight.bytes)),
        WeightFile::Plan => Some(sample(plan.files.len(), weight.offset, weight.bytes)),
        // A block is at least as long as its weights.
        WeightFile::Blocks { .. } => Some(sample(plan.files.len(), weight.offset, weight.bytes)),
        WeightFile::Derived(number) => {
            let pieces = &plan.derived.get(number as usize)?.pieces;
            let extent = pieces.get(pieces.len() / 2)?.extent;
            Some(sample(extent.file as usize, extent.offset, extent.bytes))
        }
    };
    plan.weights.iter().filter_map(of_weight).collect()
}

/// Returns the digest of the sampled bytes.
pub(crate) fn of_weights(samples: &[Sample], files: &[Mapped]) -> Digest {
    let mut hasher = SipHasher13::new();
    let mut bytes = [0; SAMPLE_BYTES as usize];
    for Sample { file, offset, bytes: some } in samples {
        let place = files.get(*file).and_then(|file| file.region().part(*offset, *some));
        let out = &mut bytes[..*some as usize];
        // SAFETY: the region lies in a mapped file.
        let read = place.is_some_and(|place| unsafe { WeightSource::Mapped(place).read(0, out) });
        hasher.write(&[u8::from(read)]);
        hasher.write(out);
    }
    Digest::from_hasher(&hasher)
}
