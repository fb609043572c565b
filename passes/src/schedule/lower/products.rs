//! Products of rows with weights, before and after `fuse`. The tasks of a product are in
//! [`super::matrix`].

use ixc_ir::graph::{Op, OpKind, WeightId};

use super::matrix::{Product, Swiglu};
use super::{Binding, Lowering, ScheduleError, unsupported_error};

impl Lowering<'_> {
    pub(super) fn matmul(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let w = self.dequantised_weight(op)?;
        let x = self.operand(op, "x")?;
        let x = self.quantise(x, self.activation(w))?;
        Ok(Binding::ArenaRows(
            self.product(name, &Product { label: self.label(op.kind, w), x, w, bias: None, residual: None })?,
        ))
    }

    pub(super) fn heads_matmul(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let w = self.dequantised_weight(op)?;
        let x = self.operand(op, "x")?;
        let x = self.quantise(x, self.activation(w))?;
        Ok(Binding::ArenaRows(self.product_of_heads(name, &self.label(op.kind, w), x, w)?))
    }

    pub(super) fn expert_matmul(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let w = self.dequantised_weight(op)?;
        let x = self.operand(op, "x")?;
        // A row is quantised once for all its experts. The copies in the experts' order are then
        // also smaller.
        let x = self.quantise(x, self.activation(w))?;
        let x = self.routed_rows(op, x)?;
        Ok(Binding::ArenaRows(
            self.product(name, &Product { label: self.label(op.kind, w), x, w, bias: None, residual: None })?,
        ))
    }

    pub(super) fn linear(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let w = self.weight_operand(op, "w");
        Ok(Binding::ArenaRows(self.product(
            name,
            &Product {
                label: self.label(op.kind, w),
                x: self.operand(op, "x")?,
                w,
                bias: self.opt_weight(op, "bias"),
                residual: self.opt_operand(op, "residual")?,
            },
        )?))
    }

    pub(super) fn linear_heads(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let w = self.weight_operand(op, "w");
        Ok(Binding::ArenaRows(self.product_of_heads(name, &self.label(op.kind, w), self.operand(op, "x")?, w)?))
    }

    pub(super) fn gated_product(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let (gate, up) = (self.weight_operand(op, "gate"), self.weight_operand(op, "up"));
        let biases = [self.opt_weight(op, "gate_bias"), self.opt_weight(op, "up_bias")];
        let mut x = self.operand(op, "x")?;
        if op.kind == OpKind::ExpertSwiglu {
            x = self.factor(x, gate)?;
            x = self.routed_rows(op, x)?;
        }
        let label = self.label(op.kind, gate);
        let swiglu = Swiglu { label, x, gate, up, biases, out: op.attr("format").format() };
        Ok(Binding::ArenaRows(self.swiglu(op, &swiglu)?))
    }

    pub(super) fn expert_down(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let w = self.weight_operand(op, "w");
        let x = self.operand(op, "x")?;
        let x = self.routed_rows(op, x)?;
        let label = self.label(op.kind, w);
        let bias = self.opt_weight(op, "bias");
        let y = self.product(name, &Product { label: label.clone(), x, w, bias, residual: None })?;
        let p = self.slots(op, "p")?;
        let residual = self.opt_operand(op, "residual")?;
        Ok(Binding::ArenaRows(self.combine(name, format!("{label} combine"), y, p, residual)?))
    }

    pub(super) fn expert_combine(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let y = self.operand(op, "y")?;
        let p = self.slots(op, "p")?;
        Ok(Binding::ArenaRows(self.combine(name, name.to_string(), y, p, None)?))
    }

    /// Lowers the projections to queries, keys and values, and binds their results.
    pub(super) fn linear_qkv(&mut self, op: &Op) -> Result<(), ScheduleError> {
        let name = op.kind.row().mnemonic;
        for (i, (x, w, b)) in [("xq", "wq", "bq"), ("xk", "wk", "bk"), ("xv", "wv", "bv")].into_iter().enumerate() {
            let w = self.weight_operand(op, w);
            let y = self.product(
                name,
                &Product {
                    label: self.label(op.kind, w),
                    x: self.operand(op, x)?,
                    w,
                    bias: self.opt_weight(op, b),
                    residual: None,
                },
            )?;
            self.meanings[op.results[i].index()] = Some(Binding::ArenaRows(y));
        }
        Ok(())
    }

    /// Returns the weight of a product whose operand `w` is a dequantised weight.
    fn dequantised_weight(&self, op: &Op) -> Result<WeightId, ScheduleError> {
        let name = op.kind.row().mnemonic;
        match self.meaning(name, self.value_operand(op, "w")?)? {
            Binding::Weight(w) => Ok(w),
            _ => unsupported_error(name, "a product of two values; one must be a dequantised weight"),
        }
    }
}
