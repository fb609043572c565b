//! Layers with states that are not KV caches.

use ixc_ir::graph::attrs::KeyHeads;
use ixc_ir::graph::{Attr, OpKind, Operand, Recurrent, State, ValueId, WeightId};
use ixc_ir::state::Rollback;

use super::Builder;
use crate::error::ArchError;
use crate::hyper::Ssm;

/// Sizes of a layer's recurrent state, which has a matrix for each head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StateSizes {
    /// Number of heads.
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
    /// Inputs of the step sizes, before the bias. Step sizes determine the decays.
    pub alpha: ValueId,
    /// Update rates of the delta rule, before the sigmoid.
    pub beta: ValueId,
    /// Factors on the step sizes, one for each head.
    pub a: WeightId,
    /// Biases of the step sizes.
    pub dt: WeightId,
    /// Key head of each value head.
    pub key_heads: KeyHeads,
    /// Epsilon added to the squared lengths of queries and keys.
    pub eps: f64,
    /// Lower bound of the logarithm of a decay; 0 means no bound.
    pub decay_bound: f64,
    /// Upper bound of update rates.
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
    /// Rates of decays, one for each head (Mamba-1: one for each element of a state).
    pub a: WeightId,
    /// Biases of the step sizes.
    pub step_bias: WeightId,
    /// Factors on values that are added to the result without passing through the state.
    pub d: WeightId,
}

/// Operands and attributes of linear attention with a decay for each token and element (RWKV).
#[derive(Clone, Copy, Debug)]
pub(crate) struct WkvRows {
    /// Sizes of the state.
    pub sizes: StateSizes,
    /// Queries, which RWKV calls receptance.
    pub r: ValueId,
    /// Keys.
    pub k: ValueId,
    /// Values.
    pub v: ValueId,
    /// Decays of the state, computed for each token.
    pub decay: ValueId,
    /// Vectors of the delta rule, for models with one (RWKV-7).
    pub delta: Option<WkvDelta>,
    /// Whether results are read from the state before the token updates it.
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
    /// Reads the sizes of the recurrent states, or returns an error if the file lacks them.
    pub fn ssm(&self) -> Result<Ssm, ArchError> {
        Ok(Ssm::read(&self.keys())?)
    }

    /// Builds an op whose first operand is a recurrent state `state` of these dimensions. Returns
    /// the op's rows.
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

    /// Builds a causal convolution of each channel of `x` with the taps in the weight `name`.
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

    /// Builds linear attention with a decay for each token and element (RWKV).
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
