//! Rotary tables, which are computed when a plan is loaded.

use serde::{Deserialize, Serialize};

use crate::rope_style::RopeStyle;

/// A rotary table: cosines and sines for RoPE. Row `p` has those of `p * frequency`, times
/// `magnitude` and the factor of `temperature`. They are computed in f64.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RopeTable {
    /// Layout of a row, and the pairs of elements that rotate together.
    pub style: RopeStyle,
    /// Angle for one position, for each pair of elements.
    pub frequencies: Vec<f64>,
    /// Factor on all cosines and sines.
    pub magnitude: f64,
    /// Positions are rounded down to a multiple of this number. With 1, each position has its own
    /// angles.
    pub every: u32,
    /// Whether the rotation is reversed: angles are negative.
    pub back: bool,
    /// Frequencies that replace `frequencies` in long contexts, if the model has them.
    pub long: Option<LongFrequencies>,
    /// Factor on cosines and sines that depends on the position, if the model has one.
    pub temperature: Option<Temperature>,
}

/// Frequencies for long contexts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LongFrequencies {
    /// Maximum context length, in positions, that still uses the short frequencies.
    pub beyond: u32,
    /// Frequencies for longer contexts, as many as for short ones.
    pub frequencies: Vec<f64>,
}

/// A factor that grows with the position, in steps of several positions:
/// `1 + scale * ln(1 + floor((position + offset) / length))`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Temperature {
    /// Factor on the logarithm.
    pub scale: f64,
    /// Number of positions that share a factor, at least 1.
    pub length: u32,
    /// Number that is added to positions: the first positions with a common factor are fewer by
    /// this number.
    pub offset: u32,
}

impl Temperature {
    /// Returns the factor at a position.
    pub fn factor(&self, position: u32) -> f64 {
        let steps = (u64::from(position) + u64::from(self.offset)) / u64::from(self.length.max(1));
        1.0 + self.scale * (steps as f64).ln_1p()
    }
}

impl RopeTable {
    /// Returns a table that does not rotate, for keys that are already rotated. It has one pair,
    /// with the angle 0: `1 * a - 0 * b` is exactly `a`.
    pub fn still() -> RopeTable {
        RopeTable {
            style: RopeStyle::Neox,
            frequencies: vec![0.0],
            magnitude: 1.0,
            every: 1,
            back: false,
            long: None,
            temperature: None,
        }
    }

    /// Returns the table for a context of `context` positions, with only the frequencies that it
    /// uses.
    pub fn for_context(&self, context: u32) -> RopeTable {
        let long = self.long.as_ref().filter(|long| context > long.beyond).map(|long| &long.frequencies);
        RopeTable { frequencies: long.unwrap_or(&self.frequencies).clone(), long: None, ..self.clone() }
    }

    /// Returns the number of rotated elements of a head.
    pub fn dims(&self) -> u64 {
        self.frequencies.len() as u64 * 2
    }

    /// Writes the row of `position`, in the layout of [`RopeStyle`]. `row` must have the length of
    /// a row of the table.
    pub fn fill_row(&self, position: u32, row: &mut [f32]) {
        let pairs = self.frequencies.len();
        let position = position - position % self.every.max(1);
        let magnitude = self.magnitude * self.temperature.map_or(1.0, |temperature| temperature.factor(position));
        for (i, frequency) in self.frequencies.iter().enumerate() {
            let (sin, cos) = (f64::from(position) * frequency).sin_cos();
            let sin = if self.back { -sin } else { sin };
            let (sin, cos) = ((sin * magnitude) as f32, (cos * magnitude) as f32);
            match self.style {
                RopeStyle::Norm => {
                    row[2 * i..2 * i + 2].fill(cos);
                    row[2 * (pairs + i)] = -sin;
                    row[2 * (pairs + i) + 1] = sin;
                }
                RopeStyle::Neox => {
                    row[i] = cos;
                    row[pairs + i] = sin;
                }
            }
        }
    }
}
