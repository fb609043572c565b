//! Selection of the rows for which each instance fires.

use crate::descriptor::Axis;

use super::pass::Pass;
use super::routing::{NONE, RowId};
use crate::layout::{Kind, Unit};

impl Pass<'_, '_> {
    /// Returns the first token of the step for which a part of a state has work.
    pub(super) fn first_token(&self, unit: &Unit, part: u32) -> u64 {
        (u64::from(part) * u64::from(unit.positions)).saturating_sub(self.position.into())
    }

    /// Returns the number of firings of an instance that are known so far.
    pub(super) fn firings(&self, unit: &Unit, instance: u32) -> u32 {
        let tokens = self.tokens.len() as u64;
        match unit.axis {
            Axis::Outputs => self.wanted.len() as u32,
            Axis::Routed(routing) => {
                let expert = unit.place(instance).expert;
                self.routed[routing as usize].rows[expert as usize].len() as u32
            }
            Axis::Tokens if unit.state.is_none() => tokens as u32,
            Axis::Tokens => {
                let part = unit.place(instance).part;
                let first = self.first_token(unit, part);
                let end = if unit.appends { self.first_token(unit, part + 1).min(tokens) } else { tokens };
                end.saturating_sub(first) as u32
            }
        }
    }

    /// Returns the row of an instance's firing.
    pub(super) fn row(&self, unit: &Unit, instance: u32, firing: u32) -> RowId {
        let token = |token| RowId { token, routed: NONE };
        match unit.axis {
            Axis::Outputs => token(self.wanted[firing as usize]),
            Axis::Routed(routing) => {
                let expert = unit.place(instance).expert;
                let routing = &self.routed[routing as usize];
                let routed = routing.rows[expert as usize][firing as usize];
                RowId { token: routed / routing.top_k, routed }
            }
            Axis::Tokens if unit.state.is_none() => token(firing),
            Axis::Tokens => {
                let part = unit.place(instance).part;
                token(self.first_token(unit, part) as u32 + firing)
            }
        }
    }

    /// Returns the row of a tensor with a number, counted as the host counts its rows.
    pub(super) fn host_row(&self, axis: Axis, number: u32) -> RowId {
        match axis {
            Axis::Tokens => RowId { token: number, routed: NONE },
            Axis::Outputs => RowId { token: self.wanted[number as usize], routed: NONE },
            Axis::Routed(routing) => RowId { token: number / self.routed[routing as usize].top_k, routed: number },
        }
    }

    /// Returns the number of a tensor's rows in this step.
    pub(super) fn rows_of(&self, axis: Axis) -> u32 {
        match axis {
            Axis::Tokens => self.tokens.len() as u32,
            Axis::Outputs => self.wanted.len() as u32,
            Axis::Routed(routing) => self.tokens.len() as u32 * self.routed[routing as usize].top_k,
        }
    }

    /// Returns the number of a row among the rows of a tensor.
    pub(super) fn number_of(&self, axis: Axis, row: RowId) -> u32 {
        match axis {
            Axis::Tokens => row.token,
            Axis::Outputs => self.output_of[row.token as usize],
            Axis::Routed(_) => row.routed,
        }
    }

    /// Returns the number of bytes that an instance receives for a row at a position.
    pub(super) fn needs(&self, unit: &Unit, position: u32) -> u64 {
        let parts = unit.receives.iter().map(|receive| match receive.kind {
            Kind::Parts { positions, count } => u64::from((position / positions + 1).min(count)) * receive.slice.bytes,
            Kind::Row | Kind::Rope | Kind::Slots { .. } => 0,
        });
        unit.fixed_bytes + parts.sum::<u64>()
    }
}
