//! The samplers, and their default order.

/// A sampler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Repeat, presence and frequency penalties.
    Penalties,
    /// DRY: penalises tokens that would continue a repetition.
    Dry,
    /// Keeps logits near the largest.
    TopNSigma,
    /// Keeps the largest logits.
    TopK,
    /// Keeps the tokens whose surprise is nearest to the entropy.
    TypicalP,
    /// Keeps the likeliest tokens that together reach a probability.
    TopP,
    /// Keeps tokens that are not much less likely than the likeliest.
    MinP,
    /// Sometimes removes the likeliest tokens.
    Xtc,
    /// Divides logits.
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
