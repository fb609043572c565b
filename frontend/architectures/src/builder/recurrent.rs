//! Layers with states that are not KV caches.

use ixc_ir::graph::attrs::KeyHeads;
use ixc_ir::graph::{Attr, OpKind, Operand, Recurrent, State, ValueId, WeightId};
use ixc_ir::state::Rollback;

use super::Builder;
use crate::error::ArchError;
use crate::hyper::Ssm;

/// Sizes of a layer's recurrent state: a matrix for each head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StateSizes {
    /// Heads, each with a state.
    pub heads: u64,
    /// Elements of a key.
    pub key_length: u64,
    /// Elements of a head's value.
    pub value_length: u64,
}

/// Operands and attributes of linear attention by the gated delta rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaNet {
    /// Sizes of the state.
    pub sizes: StateSizes,
    /// Queries, `[T, key heads, key length]`.
    pub q: ValueId,
    /// Keys, `[T, key heads, key length]`.
    pub k: ValueId,
    /// Values, `[T, heads, value length]`.
    pub v: ValueId,
    /// Inputs of the decays (`alpha`): step sizes before the bias.
    pub alpha: ValueId,
    /// Update rates of the delta rule, before the sigmoid.
    pub beta: ValueId,
    /// Factor on the step sizes, for each head.
    pub a: WeightId,
    /// Biases of the step sizes.
    pub dt: WeightId,
    /// Key head of each value head.
    pub key_heads: KeyHeads,
    /// Epsilon on the squared lengths of queries and keys.
    pub eps: f64,
    /// Lower bound of the logarithm of a decay; 0 for none.
    pub decay_bound: f64,
    /// Upper bound of rates.
    pub rate: f64,
}

/// Operands of a selective state space.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SsmScan {
    /// Sizes of the state.
    pub sizes: StateSizes,
    /// Values of the heads.
    pub x: ValueId,
    /// Keys, which values are multiplied by.
    pub key: ValueId,
    /// Queries, which states are multiplied by.
    pub query: ValueId,
    /// Step sizes.
    pub step: ValueId,
    /// Rates of decays.
    pub a: WeightId,
    /// Biases of the step sizes.
    pub step_bias: WeightId,
    /// Factors on values that bypass the state.
    pub d: WeightId,
}

/// Operands and attributes of linear attention with decays for each token (RWKV).
#[derive(Clone, Copy, Debug)]
pub(crate) struct WkvRows {
    /// Sizes of the state.
    pub sizes: StateSizes,
    /// Queries.
    pub r: ValueId,
    /// Keys.
    pub k: ValueId,
    /// Values.
    pub v: ValueId,
    /// Decays.
    pub decay: ValueId,
    /// Vectors of the delta rule, for models with one.
    pub delta: Option<WkvDelta>,
    /// Whether rows are read from the state before its update.
    pub before: bool,
    /// Whether keys are multiplied by `1 - decay`.
    pub filled: bool,
}

/// Vectors of RWKV-7's delta rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WkvDelta {
    /// Vectors to look up in the state.
    pub find: ValueId,
    /// Vectors to remove from the state.
    pub remove: ValueId,
}

impl Builder<'_> {
    /// Reads the sizes of the recurrent states, which the file must have.
    pub fn ssm(&self) -> Result<Ssm, ArchError> {
        Ok(Ssm::read(&self.keys())?)
    }

    /// Builds an op with a recurrent state `state` of these dimensions as its first operand, and
    /// returns its rows.
    pub(super) fn recurrent(
        &mut self,
        op: Recurrent,
        state: &str,
        dims: &[u64],
        operands: &[Operand],
        attrs: Vec<Attr>,
    ) -> Result<ValueId, ArchError> {
        let state = self.graph.state(State::recurrent(state, dims, Rollback::Snapshot));
        let state = self.op_result(state)?;
        let token = self.graph.state_begin(state);
        let token = Operand::Value(self.op_result(token)?);
        let operands = [&[token], operands].concat();
        let results = self.graph.op(OpKind::Recurrent(op), operands, attrs);
        Ok(self.op_result(results)?[0])
    }

    /// Builds a causal convolution of each channel of `x` with its taps, the weight `name`.
    pub fn short_conv(
        &mut self,
        state: &str,
        x: ValueId,
        name: &str,
        channels: u64,
        taps: u64,
    ) -> Result<ValueId, ArchError> {
        self.dilated_conv(state, x, name, channels, taps, 1)
    }

    /// Builds a causal convolution whose taps are `dilation` tokens apart.
    pub fn dilated_conv(
        &mut self,
        state: &str,
        x: ValueId,
        name: &str,
        channels: u64,
        taps: u64,
        dilation: u64,
    ) -> Result<ValueId, ArchError> {
        let w = self.weight(name, &[channels, taps])?;
        let operands = [Operand::Value(x), Operand::Weight(w)];
        let attrs = vec![Attr::Int(dilation.cast_signed())];
        self.recurrent(Recurrent::ShortConv, state, &[(taps - 1) * dilation, channels], &operands, attrs)
    }

    /// Builds linear attention by the gated delta rule.
    pub fn delta_net(&mut self, state: &str, of: &DeltaNet) -> Result<ValueId, ArchError> {
        let StateSizes { heads, key_length, value_length } = of.sizes;
        let values = [of.q, of.k, of.v, of.alpha, of.beta].map(Operand::Value);
        let weights = [of.a, of.dt].map(Operand::Weight);
        let rate = if of.rate == 1.0 { 0.0 } else { of.rate };
        let numbers = [of.eps, of.decay_bound, rate].map(Attr::rounded);
        let attrs = [Attr::Word(of.key_heads.word().to_owned())].into_iter().chain(numbers).collect();
        let dims = [heads, key_length, value_length];
        self.recurrent(Recurrent::DeltaNet, state, &dims, &[&values[..], &weights].concat(), attrs)
    }

    /// Builds a selective state space.
    pub fn ssm_scan(&mut self, state: &str, of: &SsmScan) -> Result<ValueId, ArchError> {
        let StateSizes { heads, key_length, value_length } = of.sizes;
        let values = [of.x, of.key, of.query, of.step].map(Operand::Value);
        let weights = [of.a, of.step_bias, of.d].map(Operand::Weight);
        let dims = [heads, key_length, value_length];
        self.recurrent(Recurrent::SsmScan, state, &dims, &[&values[..], &weights].concat(), Vec::new())
    }

    /// Builds linear attention with decays for each token (RWKV).
    pub fn wkv(&mut self, state: &str, of: &WkvRows) -> Result<ValueId, ArchError> {
        let StateSizes { heads, key_length, value_length } = of.sizes;
        let values = [of.r, of.k, of.v, of.decay].map(Operand::Value);
        let deltas = match of.delta {
            Some(WkvDelta { find, remove }) => [find, remove].map(Operand::Value),
            None => [Operand::Absent; 2],
        };
        let attrs = vec![Attr::Bool(of.before), Attr::Bool(of.filled)];
        let dims = [heads, key_length, value_length];
        self.recurrent(Recurrent::Wkv, state, &dims, &[&values[..], &deltas].concat(), attrs)
    }
}
