//! Folds repeated layers: lines of layers that differ only in the layer's number become one *body*.
//!
//! [`ixc_ir::names`] finds a layer's number: `blk.7.attn_q.weight`, `kv.7`, `linear
//! blk.7.attn_output`. Folded text has [`NUMBER`] instead, so that layers without other differences
//! are equal.
//!
//! ```text
//! %0 = rms_norm %^0, @blk.#.attn_norm.weight {eps = 1e-6} : f32[T, 256]      layers 0 to 47
//! ```

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use ixc_ir::names::in_layer;
pub use ixc_ir::names::layer_of;
use serde::{Serialize, Serializer};

/// Placeholder for a layer's number.
pub const NUMBER: &str = "#";

/// Section of a model: a layer, or the part before or after all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Section {
    /// The part before all layers.
    In,
    /// A layer.
    Layer(u32),
    /// The part after all layers.
    Out,
}

impl Section {
    /// Returns the layer's number, if this is a layer.
    pub fn layer(self) -> Option<u32> {
        match self {
            Section::Layer(number) => Some(number),
            Section::In | Section::Out => None,
        }
    }
}

/// A layer is serialised as its number, and the other sections as `in` and `out`.
impl Serialize for Section {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Section::In => serializer.serialize_str("in"),
            Section::Layer(number) => serializer.serialize_u32(*number),
            Section::Out => serializer.serialize_str("out"),
        }
    }
}

/// Returns a name or a label without its layer's number, if it has one.
pub fn without_number(name: &str) -> String {
    in_layer(name, NUMBER)
}

/// Layer that the names of an item contain, if any.
#[derive(Clone, Copy, Debug, Default)]
pub struct ItemLayers {
    /// Layer that one of the names contains.
    pub layer: Option<u32>,
    /// Whether the item has any name.
    pub named: bool,
}

impl ItemLayers {
    /// Collects the information from an item's names.
    pub fn from_names<'n>(names: impl IntoIterator<Item = &'n str>) -> ItemLayers {
        let mut layers = ItemLayers::default();
        for name in names {
            layers.named = true;
            layers.layer = layers.layer.or_else(|| layer_of(name));
        }
        layers
    }
}

/// Returns the sections of items, which are in the order of the model's ops. An item without a
/// layer belongs to the section of the item before it. Items before the first layer belong to
/// [`Section::In`]; named items after the last layer belong to [`Section::Out`].
pub fn sections(items: &[ItemLayers]) -> Vec<Section> {
    let first = items.iter().position(|item| item.layer.is_some()).unwrap_or(items.len());
    let last = items.iter().rposition(|item| item.layer.is_some()).unwrap_or(0);
    let mut current = Section::In;
    let section = |(at, item): (usize, &ItemLayers)| {
        if let Some(number) = item.layer {
            current = Section::Layer(number);
        } else if at > last && first < items.len() && item.named {
            current = Section::Out;
        }
        current
    };
    items.iter().enumerate().map(section).collect()
}

/// The bodies of sections, without duplicates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FoldedSections<T> {
    /// The bodies.
    pub bodies: Vec<Vec<T>>,
    /// Sections in order, each with the number of its body.
    pub places: Vec<(Section, usize)>,
}

impl<T: Clone + Eq + Hash> FoldedSections<T> {
    /// Folds the items of all sections.
    pub fn new(sections: BTreeMap<Section, Vec<T>>) -> FoldedSections<T> {
        let mut known: HashMap<Vec<T>, usize> = HashMap::new();
        let mut folded = FoldedSections { bodies: Vec::new(), places: Vec::new() };
        for (section, body) in sections {
            let number = known.get(&body).copied().unwrap_or_else(|| {
                known.insert(body.clone(), folded.bodies.len());
                folded.bodies.push(body);
                folded.bodies.len() - 1
            });
            folded.places.push((section, number));
        }
        folded
    }

    /// Returns the number of a section's body.
    pub fn body_of(&self, section: Section) -> Option<usize> {
        let at = self.places.binary_search_by_key(&section, |place| place.0).ok()?;
        self.places.get(at).map(|place| place.1)
    }
}

/// Returns sections as text: `layers 0 to 5, 8 and 11`.
pub fn section_names(sections: &[Section]) -> String {
    let mut numbers: Vec<u32> = sections.iter().filter_map(|section| section.layer()).collect();
    numbers.sort_unstable();
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let runs = runs.iter().map(|&(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first} to {last}"),
    });
    let runs: Vec<String> = runs.collect();
    let one = runs.len() == 1 && runs[0].parse::<u32>().is_ok();
    let layers = (!runs.is_empty()).then(|| format!("{} {}", if one { "layer" } else { "layers" }, runs.join(", ")));
    let outside = [(Section::In, "before the layers"), (Section::Out, "after the layers")];
    let outside = outside.iter().filter(|(section, _)| sections.contains(section)).map(|(_, text)| (*text).to_owned());
    outside.chain(layers).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_without_a_layer_join_neighbouring_sections() {
        let items =
            [Some("embed"), None, Some("blk.0.q"), None, Some("rope"), Some("blk.1.q"), None, Some("head"), None];
        let layers: Vec<ItemLayers> = items.iter().map(|name| ItemLayers::from_names(*name)).collect();
        let (first, second) = (Section::Layer(0), Section::Layer(1));
        let expected =
            [Section::In, Section::In, first, first, first, second, second, Section::Out, Section::Out].to_vec();
        assert_eq!(sections(&layers), expected);
        assert_eq!(sections(&layers[..2]), [Section::In; 2]);
    }

    #[test]
    fn equal_layers_are_one_body() {
        let layer = |number: u32, text: &str| (Section::Layer(number), vec![text.to_owned()]);
        let folded = FoldedSections::new(BTreeMap::from([layer(0, "a"), layer(1, "b"), layer(2, "a"), layer(3, "a")]));
        assert_eq!(
            (folded.bodies.len(), folded.body_of(Section::Layer(3)), folded.body_of(Section::In)),
            (2, Some(0), None)
        );
        assert_eq!(
            section_names(&[Section::Layer(0), Section::Layer(2), Section::Layer(3), Section::Layer(4)]),
            "layers 0, 2 to 4"
        );
        assert_eq!(section_names(&[Section::Layer(7)]), "layer 7");
        assert_eq!(section_names(&[Section::In, Section::Layer(7)]), "before the layers, layer 7");
    }
}
