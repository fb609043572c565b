//! The kinds of samplers, and their default order.

/// Kind of a sampler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Repeat, presence and frequency penalties.
    Penalties,
    /// DRY: penalises tokens that would continue a repetition.
    Dry,
    /// Top-n-sigma: keeps tokens whose logits are near the largest logit, measured in standard
    /// deviations.
    TopNSigma,
    /// Top-k: keeps the tokens with the largest logits.
    TopK,
    /// Locally typical sampling: keeps the tokens whose surprise is nearest to the entropy.
    TypicalP,
    /// Top-p: keeps the likeliest tokens that together reach a given probability.
    TopP,
    /// Min-p: keeps tokens whose probability is at least a given fraction of the largest one.
    MinP,
    /// XTC: with a given probability, removes the likeliest tokens.
    Xtc,
    /// Temperature: divides the logits.
    Temperature,
}

/// The default samplers, in their order.
pub const DEFAULT: [Kind; 9] = [
    Kind::Penalties,
    Kind::Dry,
    Kind::TopNSigma,
    Kind::TopK,
    Kind::TypicalP,
    Kind::TopP,
    Kind::MinP,
    Kind::Xtc,
    Kind::Temperature,
];
