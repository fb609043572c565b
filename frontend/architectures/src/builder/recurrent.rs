//! Layers with states that are not KV caches.

use ixc_ir::graph::attrs::KeyHeads;
use ixc_ir::graph::{Attr, OpKind, Operand, Recurrent, State, ValueId, WeightId};
use ixc_ir::state::Rollback;

use super::Builder;
use crate::error::ArchError;
use crate::hyper::{Ssm, Wkv};

impl Builder<'_> {
    /// Returns the sizes of the recurrent states, which the file must have.
    pub fn ssm(&self) -> Result<Ssm, ArchError> {
        let key = format!("{}.ssm.state_size", self.architecture);
        self.hyper.ssm.ok_or_else(|| self.gguf.metadata().missing(&key, "u32").into())
    }

    /// Returns the length of the row from which steps of state spaces are made, which the file must
    /// have.
    pub fn step_rank(&self) -> Result<u64, ArchError> {
        let key = format!("{}.ssm.time_step_rank", self.architecture);
        self.ssm()?.rank.ok_or_else(|| self.gguf.metadata().missing(&key, "u32").into())
    }

    /// Returns the sizes of RWKV's layers, which the file must have.
    pub fn wkv_sizes(&self) -> Result<Wkv, ArchError> {
        let key = format!("{}.wkv.head_size", self.architecture);
        self.hyper.wkv.ok_or_else(|| self.gguf.metadata().missing(&key, "u32").into())
    }

    /// Builds an op with a recurrent state `state` of these dimensions as its first operand, and
    /// returns its rows.
    pub(super) fn recurrent(
        &mut self,
        op: Recurrent,
        (state, dims): (&str, &[u64]),
        operands: &[Operand],
        attrs: Vec<Attr>,
    ) -> Result<ValueId, ArchError> {
        let state = self.graph.state(State::recurrent(state, dims, Rollback::Snapshot));
        let state = self.typed(state)?;
        let token = self.graph.state_begin(state);
        let token = Operand::Value(self.typed(token)?);
        let operands = [&[token], operands].concat();
        let results = self.graph.op(OpKind::Recurrent(op), operands, attrs);
        Ok(self.typed(results)?[0])
    }

    /// Builds a causal convolution of each channel of `x` with its taps, the weight `name`.
    pub fn short_conv(
        &mut self,
        state: &str,
        x: ValueId,
        name: &str,
        [channels, taps]: [u64; 2],
    ) -> Result<ValueId, ArchError> {
        self.dilated_conv(state, x, name, [channels, taps], 1)
    }

    /// Builds such a convolution with taps at every `dilation` tokens.
    pub fn dilated_conv(
        &mut self,
        state: &str,
        x: ValueId,
        name: &str,
        [channels, taps]: [u64; 2],
        dilation: u64,
    ) -> Result<ValueId, ArchError> {
        let w = self.weight(name, &[channels, taps])?;
        let operands = [Operand::Value(x), Operand::Weight(w)];
        let attrs = vec![Attr::Int(dilation.cast_signed())];
        self.recurrent(Recurrent::ShortConv, (state, &[(taps - 1) * dilation, channels]), &operands, attrs)
    }

    /// Builds linear attention by the gated delta rule. The values are queries, keys, values, alpha
    /// and beta; the weights are `a` and `dt`. `eps` is the epsilon on squared lengths. Decays have
    /// the model's bound, if it has one.
    pub fn delta_net(
        &mut self,
        state: &str,
        values: [ValueId; 5],
        weights: [WeightId; 2],
        keys: KeyHeads,
        eps: f64,
    ) -> Result<ValueId, ArchError> {
        let Ssm { heads, key_length, value_length, decay_bound, rate, .. } = self.ssm()?;
        let operands: Vec<Operand> =
            values.map(Operand::Value).into_iter().chain(weights.map(Operand::Weight)).collect();
        let rate = if rate == 1.0 { 0.0 } else { rate };
        let numbers = [eps, decay_bound, rate].map(Attr::rounded);
        let attrs = [Attr::Word(keys.word().to_owned())].into_iter().chain(numbers).collect();
        self.recurrent(Recurrent::DeltaNet, (state, &[heads, key_length, value_length]), &operands, attrs)
    }

    /// Builds a selective state space. The values are `x`, `b`, `c` and `dt`; the weights are `a`,
    /// the bias of `dt`, and `d`.
    pub fn ssm_scan(
        &mut self,
        state: &str,
        values: [ValueId; 4],
        weights: [WeightId; 3],
    ) -> Result<ValueId, ArchError> {
        let Ssm { heads, key_length, value_length, .. } = self.ssm()?;
        let operands: Vec<Operand> =
            values.map(Operand::Value).into_iter().chain(weights.map(Operand::Weight)).collect();
        self.recurrent(Recurrent::SsmScan, (state, &[heads, key_length, value_length]), &operands, Vec::new())
    }

    /// Builds linear attention with decays for each token (RWKV). The values are queries, keys,
    /// values and decays. `deltas` are the vectors to look up in the state and to remove from it,
    /// if any. `before` reads rows from the state before its update; `filled` multiplies keys by
    /// the decayed part.
    pub fn wkv(
        &mut self,
        state: &str,
        values: [ValueId; 4],
        deltas: Option<[ValueId; 2]>,
        [before, filled]: [bool; 2],
    ) -> Result<ValueId, ArchError> {
        let Wkv { heads, length, .. } = self.wkv_sizes()?;
        let deltas = match deltas {
            Some(deltas) => deltas.map(Operand::Value),
            None => [Operand::Absent; 2],
        };
        let operands: Vec<Operand> = values.map(Operand::Value).into_iter().chain(deltas).collect();
        let attrs = vec![Attr::Bool(before), Attr::Bool(filled)];
        self.recurrent(Recurrent::Wkv, (state, &[heads, length, length]), &operands, attrs)
    }
}
