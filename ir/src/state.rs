//! Kinds of state, in one table. A state is kept from one step of a model to the next. A graph's
//! module declares each state of a model, and a plan has a list of them. The runtime uses the
//! properties listed here, and never asks which ops access a state.
//!
//! | kind | fields | can be |
//! | --- | --- | --- |
//! | `paged` | `keys`, `values`: data for each of `S` positions | cut or shared at a position |
//! | `recurrent` | `value`: of a fixed size | restored from a snapshot |
//!
//! ```text
//! state @kv.0 : paged f16[8, S, 128], f16[8, S, 128]
//! state @kv.1 : paged f16[8, S, 128], f16[8, S, 128] {window = 1024}
//! state @entries.1 : paged f16[1, S, 512], f16[1, S, 512] {every = 128}   // 128 positions a place
//! state @kv.2 : paged q8_0[8, S, 128], q4_0[8, S, 128]
//! state @ssm.2 : recurrent f32[32, 128, 128] {rollback = snapshot}
//! ```
//!
//! To add a kind, add a row here. Ops specify the kind that they accept. The code for memory,
//! truncation, reuse of prefixes and statistics reads the row.

use serde::{Deserialize, Serialize};

use crate::format::Format;

/// Symbol of the dimension that counts positions in the fields of a state.
pub const POSITIONS: &str = "S";

/// Method of returning a state to an earlier position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Rollback {
    /// Truncation at the position: data of later positions are dropped.
    Cut,
    /// Restoration of a copy that was made at the position. Other positions cannot be restored.
    Snapshot,
    /// No method. Such a state can only be reset to the beginning.
    None,
}

impl Rollback {
    /// All methods, in the order of their declaration.
    pub const ALL: [Rollback; 3] = [Rollback::Cut, Rollback::Snapshot, Rollback::None];

    /// Returns the method's word in IR text.
    pub fn word(self) -> &'static str {
        match self {
            Rollback::Cut => "cut",
            Rollback::Snapshot => "snapshot",
            Rollback::None => "none",
        }
    }
}

/// A field that all states of a kind have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldRow {
    /// Name of the field.
    pub name: &'static str,
    /// Possible formats. The first is the default. In quantised block formats ([`crate::cache`]),
    /// the last dimension must be whole blocks.
    pub formats: &'static [Format],
    /// Whether the field's second dimension counts positions: `[columns, S, width]`. Otherwise all
    /// dimensions are fixed numbers.
    pub positions: bool,
    /// Whether [`crate::plan::KEY_LANES`] positions are interleaved. In f16, the layout is
    /// `[columns, S / 16, width, 16]`.
    pub lanes: bool,
    /// Whether the bytes of dropped positions must be set to zero. Kernels multiply them by a
    /// weight of 0, so an infinity would give NaN. Quantised block formats have no infinities.
    pub cleared: bool,
}

impl FieldRow {
    /// Returns the field's default format.
    pub const fn format(&self) -> Format {
        self.formats[0]
    }

    /// Returns the names of the possible formats, such as `f16, q8_0 or q4_0`.
    pub fn formats(&self) -> String {
        let names: Vec<&str> = self.formats.iter().map(|format| format.name()).collect();
        match &names[..] {
            [lead @ .., last] if !lead.is_empty() => format!("{} or {last}", lead.join(", ")),
            names => names.concat(),
        }
    }
}

/// A kind of state.
#[derive(Clone, Copy, Debug)]
pub struct StateRow {
    /// Kind that this row declares.
    pub kind: StateKind,
    /// Name in IR text.
    pub name: &'static str,
    /// Fields of the state, in order.
    pub fields: &'static [FieldRow],
    /// Possible methods of returning to an earlier position. The first is the default.
    pub rollbacks: &'static [Rollback],
    /// Whether a state of this kind may have a window, so that it keeps only the last positions.
    pub windowed: bool,
    /// Whether sequences with a common prefix may share the state's data of that prefix.
    pub shared: bool,
    /// Documentation of the kind in one line.
    pub doc: &'static str,
}

macro_rules! state_kinds {
    ($($kind:ident $name:literal { $($field:ident: $($format:ident)|+ positions $positions:literal lanes $lanes:literal cleared $cleared:literal),* } rollback [$($rollback:ident),*] windowed $windowed:literal shared $shared:literal, $doc:literal;)*) => {
        /// Kind of a state.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum StateKind { $(#[doc = $doc] $kind),* }

        /// Table of all kinds, in the order of [`StateKind`].
        pub static STATES: &[StateRow] = &[$(StateRow {
            kind: StateKind::$kind, name: $name,
            fields: &[$(FieldRow { name: stringify!($field), formats: &[$(Format::$format),+], positions: $positions, lanes: $lanes, cleared: $cleared }),*],
            rollbacks: &[$(Rollback::$rollback),*], windowed: $windowed, shared: $shared, doc: $doc,
        }),*];
    };
}

state_kinds! {
    Paged "paged" { keys: F16 | Q8_0 | Q4_0 positions true lanes true cleared false, values: F16 | Q8_0 | Q4_0 positions true lanes false cleared true } rollback [Cut] windowed true shared true,
        "Keys and values of each position, for attention.";
    Recurrent "recurrent" { value: F32 positions false lanes false cleared false } rollback [Snapshot, None] windowed false shared false,
        "One value of fixed size that each token changes.";
}

impl StateKind {
    /// Returns the kind's row of [`STATES`].
    pub fn row(self) -> &'static StateRow {
        &STATES[self as usize]
    }

    /// Returns the kind with this name, or `None`.
    pub fn from_name(name: &str) -> Option<StateKind> {
        STATES.iter().find(|row| row.name == name).map(|row| row.kind)
    }

    /// Returns the index of the field with this name, which the kind must have.
    pub fn field(self, name: &str) -> u32 {
        match self.row().fields.iter().position(|field| field.name == name) {
            Some(i) => i as u32,
            None => unreachable!("a {} state has no field {name}", self.row().name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_table_matches_the_enum_and_has_rollbacks() {
        for (i, row) in STATES.iter().enumerate() {
            assert_eq!((row.kind as usize, StateKind::from_name(row.name)), (i, Some(row.kind)));
            assert!(!row.fields.is_empty() && !row.rollbacks.is_empty());
            // A state that can be cut at a position must have data for each position.
            let positions = row.fields.iter().all(|field| field.positions);
            assert_eq!(row.rollbacks.contains(&Rollback::Cut), positions, "{}", row.name);
            assert!(positions || !(row.windowed || row.shared), "{}", row.name);
            // All quantised block formats of fields must be formats that the KV cache supports.
            let known = |format: &Format| !format.is_quantised() || crate::cache::Codes::from_format(*format).is_some();
            assert!(row.fields.iter().all(|field| !field.formats.is_empty() && field.formats.iter().all(known)));
        }
    }
}
