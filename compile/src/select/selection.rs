//! Patterns of names and layers, and the items that they select.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use ixc_failure::Class;
use ixc_ir::names;
use ixc_passes::options::matches;
use similar::{Algorithm, capture_diff_slices, get_diff_ratio};

/// Selection by pattern and layers. If neither is set, it selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Pattern of names; `None` selects all names.
    pub op: Option<String>,
    /// Ranges of layers; an empty list selects all layers.
    pub layers: Vec<LayerRange>,
}

/// Inclusive range of layers, such as `3` or `0-5`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerRange {
    /// Number of the first layer.
    pub first: u64,
    /// Number of the last layer, included.
    pub last: u64,
}

impl FromStr for LayerRange {
    type Err = String;

    fn from_str(text: &str) -> Result<LayerRange, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.trim().parse(), last.trim().parse()) {
            (Ok(first), Ok(last)) if first <= last => Ok(LayerRange { first, last }),
            _ => Err("expected a layer such as 3, or layers such as 0-5".into()),
        }
    }
}

impl fmt::Display for LayerRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.last - self.first {
            0 => write!(f, "{}", self.first),
            _ => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

/// Returns a list as text, or the word `none` for an empty list.
fn some(list: &str) -> &str {
    if list.is_empty() { "none" } else { list }
}

/// Error of a selection that selects nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// No item has a matching name.
    #[error("no op, weight, state, value or kernel has the name {pattern:?}{}; ops are {}", nearest(near), some(&ops.join(", ")))]
    NoName {
        /// Pattern of the option.
        pattern: String,
        /// Names that resemble the pattern.
        near: Vec<String>,
        /// Words of all ops.
        ops: Vec<String>,
    },
    /// A requested layer does not exist.
    #[error("layer {asked} has no ops, steps or decisions; layers that have some: {}", some(layers))]
    NoLayer {
        /// Layers that the selection requests.
        asked: String,
        /// Layers that exist.
        layers: String,
    },
    /// All items with a matching name are in layers that the selection does not include.
    #[error("{pattern:?} is not in layer {asked}; its layers: {layers}")]
    Elsewhere {
        /// Requested pattern.
        pattern: String,
        /// Layers that the selection requests.
        asked: String,
        /// Layers of the matching items.
        layers: String,
    },
}

impl SelectError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            SelectError::NoName { .. } | SelectError::NoLayer { .. } | SelectError::Elsewhere { .. } => Class::Usage,
        }
    }
}

fn nearest(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!("; similar names: {}", near.join(", ")) }
}

/// An item that can be selected: an op, a task or another step, or a decision of a pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Item {
    /// Word of the op, such as `linear`.
    pub op: String,
    /// Names of the item's weights, states, values and kernels.
    pub names: Vec<String>,
    /// Layer of the item, if any.
    pub layer: Option<u64>,
}

impl Selection {
    /// Whether the selection includes all items.
    pub fn is_all(&self) -> bool {
        self.op.is_none() && self.layers.is_empty()
    }

    /// Returns the positions of the selected items.
    ///
    /// # Errors
    /// [`SelectError`] if no item is selected.
    pub fn positions(&self, items: &[Item]) -> Result<Vec<usize>, SelectError> {
        let named: Vec<usize> = (0..items.len()).filter(|&at| self.names(&items[at])).collect();
        let chosen: Vec<usize> = named.iter().copied().filter(|&at| self.is_in(items[at].layer)).collect();
        if !chosen.is_empty() || self.is_all() {
            return Ok(chosen);
        }
        let asked = || self.layers.iter().map(LayerRange::to_string).collect::<Vec<_>>().join(", ");
        let layers =
            |at: &mut dyn Iterator<Item = usize>| at.filter_map(|at| items[at].layer).collect::<BTreeSet<u64>>();
        Err(match &self.op {
            Some(pattern) if named.is_empty() => SelectError::NoName {
                pattern: pattern.clone(),
                near: near(pattern, items),
                ops: items.iter().map(|item| item.op.clone()).collect::<BTreeSet<_>>().into_iter().collect(),
            },
            Some(pattern) if items.iter().any(|item| self.is_in(item.layer)) => SelectError::Elsewhere {
                pattern: pattern.clone(),
                asked: asked(),
                layers: match layers(&mut named.iter().copied()) {
                    none if none.is_empty() => "none".into(),
                    layers => ranges(&layers),
                },
            },
            Some(_) | None => SelectError::NoLayer { asked: asked(), layers: ranges(&layers(&mut (0..items.len()))) },
        })
    }

    fn is_in(&self, layer: Option<u64>) -> bool {
        self.layers.is_empty()
            || layer.is_some_and(|layer| self.layers.iter().any(|range| (range.first..=range.last).contains(&layer)))
    }

    fn names(&self, item: &Item) -> bool {
        let Some(pattern) = self.op.as_deref() else { return true };
        let whole = pattern.contains(['*', '?']);
        let is_name = |name: &String| match whole {
            true => matches(pattern, name) || matches(pattern, bare(name)),
            false => name.contains(pattern),
        };
        matches(pattern, &item.op) || item.names.iter().any(is_name)
    }
}

/// Returns a weight's name in the form that labels of tasks have.
fn bare(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}

/// Returns the layer in a name, such as `blk.3.attn_q.weight` or `kv.3`.
pub fn layer_of(name: &str) -> Option<u64> {
    names::layer_of(name).map(u64::from)
}

/// Returns a name or a task's label with `*` for its layer: `blk.*.attn_q.weight`.
pub fn in_any_layer(name: &str) -> String {
    names::in_layer(name, "*")
}

/// Returns layers as text with ranges: `0-3, 7`.
pub fn ranges(layers: &BTreeSet<u64>) -> String {
    let mut ranges: Vec<LayerRange> = Vec::new();
    for &layer in layers {
        match ranges.last_mut() {
            Some(range) if range.last + 1 == layer => range.last = layer,
            _ => ranges.push(LayerRange { first: layer, last: layer }),
        }
    }
    ranges.iter().map(LayerRange::to_string).collect::<Vec<_>>().join(", ")
}

/// Minimum similarity of a suggested name to the pattern, from 0 to 1.
const ALIKE: f32 = 0.6;
/// Max number of similar names that an error suggests.
const NEAR: usize = 5;
/// Limits for the search of suggestions: max characters of a name, and max number of names.
const COMPARED: (usize, usize) = (64, 4096);

/// Returns words and names that are similar to a pattern.
fn near(pattern: &str, items: &[Item]) -> Vec<String> {
    let names = |item: &Item| item.names.iter().map(|name| in_any_layer(bare(name))).collect::<Vec<_>>();
    let all: BTreeSet<String> =
        items.iter().flat_map(|item| names(item).into_iter().chain([item.op.clone()])).collect();
    let pattern: Vec<char> = pattern.chars().filter(|c| !"*?".contains(*c)).take(COMPARED.0).collect();
    let like = |text: &str| {
        let text: Vec<char> = text.chars().take(COMPARED.0).collect();
        let ops = capture_diff_slices(Algorithm::Lcs, &pattern, &text);
        get_diff_ratio(&ops, pattern.len(), text.len())
    };
    let mut found: Vec<(f32, String)> = (all.into_iter().take(COMPARED.1))
        .map(|name| (name.split('.').map(like).fold(like(&name), f32::max), name))
        .filter(|(like, _)| *like >= ALIKE)
        .collect();
    found.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    found.into_iter().take(NEAR).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(op: &str, names: &[&str], layer: Option<u64>) -> Item {
        Item { op: op.into(), names: names.iter().map(|name| (*name).into()).collect(), layer }
    }

    fn items() -> Vec<Item> {
        vec![
            item("embed", &["token_embd.weight"], None),
            item("linear", &["blk.0.ffn_gate_inp.weight", "gemv_f32_t16"], Some(0)),
            item("linear.qkv", &["blk.1.attn_q.weight"], Some(1)),
            item("route", &[], Some(1)),
            item("linear", &["blk.2.ffn_gate_inp.weight", "gemv_f32_t16"], Some(2)),
        ]
    }

    fn select(op: Option<&str>, layers: &[&str]) -> Result<Vec<usize>, String> {
        let layers = layers.iter().map(|text| text.parse().unwrap()).collect();
        Selection { op: op.map(Into::into), layers }.positions(&items()).map_err(|error| error.to_string())
    }

    #[test]
    fn ops_are_found_by_word_name_and_layer() {
        assert_eq!(select(None, &[]).unwrap(), [0, 1, 2, 3, 4]);
        // A pattern must match the whole word of an op. It may match a part of a name, if it has no
        // wildcards.
        assert_eq!(select(Some("linear"), &[]).unwrap(), [1, 4]);
        assert_eq!(select(Some("linear*"), &[]).unwrap(), [1, 2, 4]);
        assert_eq!(select(Some("ffn_gate"), &["1-2"]).unwrap(), [4]);
        assert_eq!(select(Some("blk.*.ffn_gate_inp"), &[]).unwrap(), [1, 4]);
        assert_eq!(select(Some("blk.?.attn_q.weight"), &["0", "1"]).unwrap(), [2]);
        assert_eq!(select(Some("gemv_f32"), &[]).unwrap(), [1, 4]);
        assert_eq!(select(None, &["1"]).unwrap(), [2, 3]);
    }

    #[test]
    fn empty_selection_lists_available_names() {
        assert_eq!(
            select(Some("ffn_gate_imp"), &[]).unwrap_err(),
            "no op, weight, state, value or kernel has the name \"ffn_gate_imp\"; similar names: blk.*.ffn_gate_inp; ops are embed, linear, linear.qkv, route"
        );
        assert_eq!(
            select(Some("linaer"), &[]).unwrap_err().split("; ").nth(1).unwrap(),
            "similar names: linear, linear.qkv"
        );
        assert!(!select(Some("zzz"), &[]).unwrap_err().contains("similar names"));
        assert_eq!(
            select(None, &["7-9"]).unwrap_err(),
            "layer 7-9 has no ops, steps or decisions; layers that have some: 0-2"
        );
        assert_eq!(select(Some("linear"), &["1"]).unwrap_err(), "\"linear\" is not in layer 1; its layers: 0, 2");
        assert_eq!(select(Some("embed"), &["1"]).unwrap_err(), "\"embed\" is not in layer 1; its layers: none");
        assert_eq!(
            select(Some("linear"), &["5"]).unwrap_err(),
            "layer 5 has no ops, steps or decisions; layers that have some: 0-2"
        );
    }

    #[test]
    fn layers_are_parsed_from_names_and_ranges() {
        assert_eq!(
            ["blk.12.attn_q.weight", "kv.3", "token_embd.weight", "4.x"].map(layer_of),
            [Some(12), Some(3), None, None]
        );
        assert_eq!(["blk.12.ffn.0.w", "output"].map(in_any_layer), ["blk.*.ffn.0.w", "output"]);
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8].into_iter().collect()), "0-2, 5, 7-8");
        assert!(["5-3", "x", "", "-1", "1-"].iter().all(|text| text.parse::<LayerRange>().is_err()));
        assert_eq!("0-3".parse::<LayerRange>().unwrap().to_string(), "0-3");
    }
}
