//! The graph on the page: ops of each layer with their operands and results. Equal layers appear
//! once.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use ixc_ir::graph::{Attr, Function, Module, Op, Operand, Part, State, TokenOwner, Type, ValueId, Weight};
use serde::Serialize;

use super::fold::{FoldedSections, ItemLayers, NUMBER, Section, layer_of, sections, without_number};

/// Op of a body. Names in it have no layer numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct OpLine {
    /// The op as text, without its results.
    text: String,
    /// Mnemonic of the op.
    op: &'static str,
    /// Names and types of the op's results.
    results: Vec<(String, String)>,
    /// Definitions of the op's operands: the position of an op in the same section, or `-1 - n` for
    /// the section's n-th value from another section.
    takes: Vec<i32>,
    /// Names of the weights and states in the op.
    names: Vec<String>,
}

/// Definition of a value from another section: that section, and the position in it. `None` for a
/// parameter.
type Definition = Option<(Section, usize)>;

/// A graph.
#[derive(Clone, Debug, Serialize)]
pub struct Graph {
    /// Pass that produced the graph; `None` for the graph from the frontend.
    after: Option<&'static str>,
    /// Ops of the graph, with equal layers folded.
    folded: FoldedSections<OpLine>,
    /// Definitions of each section's values from other sections.
    from: Vec<Vec<Definition>>,
    /// Parameters and their types.
    parameters: Vec<(String, String)>,
    /// Number of all ops.
    ops: usize,
}

/// Returns the function of a model.
fn function(module: &Module) -> Option<&Function> {
    module.functions.first()
}

/// Returns the names of weights and states in an op.
fn names<'m>(module: &'m Module, op: &'m Op) -> impl Iterator<Item = &'m str> {
    op.operands.iter().filter_map(|operand| match operand {
        Operand::Weight(weight) => module.weights.get(weight.index()).map(|weight| weight.name.as_str()),
        Operand::State(state) => module.states.get(state.index()).map(|state| state.name.as_str()),
        Operand::Value(_) | Operand::Absent => None,
    })
}

/// Returns a name in text form.
fn symbol(name: &str) -> String {
    let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'#' | b'-'));
    if plain && !name.is_empty() { format!("@{name}") } else { format!("@{name:?}") }
}

fn type_text(module: &Module, ty: &Type) -> String {
    match ty {
        Type::Token(TokenOwner::State(state)) => match module.states.get(state.index()) {
            Some(state) => format!("token<{}>", symbol(&without_number(&state.name))),
            None => "token<@?>".to_owned(),
        },
        Type::Token(TokenOwner::Experts | TokenOwner::Ranks(_)) | Type::Tensor { .. } => ty.text(module),
    }
}

/// The values of a section: its own, and those from other sections.
#[derive(Default)]
struct Values {
    own: HashMap<ValueId, (usize, String)>,
    defined: usize,
    others: Vec<ValueId>,
}

impl Values {
    /// Returns the definition of a value (as in [`OpLine::takes`]) and its name.
    fn take(&mut self, function: &Function, value: ValueId) -> (i32, String) {
        if let Some((op, name)) = self.own.get(&value) {
            return (i32::try_from(*op).unwrap_or(i32::MAX), name.clone());
        }
        let at = self.others.iter().position(|other| *other == value).unwrap_or_else(|| {
            self.others.push(value);
            self.others.len() - 1
        });
        let name = match function.params.contains(&value).then(|| function.values.get(value.index())).flatten() {
            Some(value) => format!("%{}", value.name.as_deref().unwrap_or("?")),
            None => format!("%^{at}"),
        };
        (-1 - i32::try_from(at).unwrap_or(0), name)
    }

    fn define(&mut self, function: &Function, op: usize, value: ValueId) -> String {
        let own = function.values.get(value.index()).and_then(|value| value.name.as_deref());
        let name = own.map_or_else(|| format!("%{}", self.defined), |name| format!("%{}", without_number(name)));
        self.defined += 1;
        self.own.insert(value, (op, name.clone()));
        name
    }
}

/// Name of the attribute that holds the layer of an op's experts.
const LAYER: &str = "layer";

/// Returns an attribute as text. A layer number is relative to the section: `#`, `# + 1`.
fn attr_text(name: &str, attr: &Attr, section: Section) -> String {
    if let (LAYER, Attr::Int(layer), Some(here)) = (name, attr, section.layer()) {
        let away = i128::from(*layer) - i128::from(here);
        return match away {
            0 => format!("{name} = {NUMBER}"),
            1.. => format!("{name} = {NUMBER} + {away}"),
            ..0 => format!("{name} = {NUMBER} - {}", away.unsigned_abs()),
        };
    }
    format!("{name} = {attr}")
}

fn line(module: &Module, function: &Function, op: &Op, section: Section, at: usize, values: &mut Values) -> OpLine {
    let row = op.kind.row();
    let (mut text, mut takes) = (row.mnemonic.to_owned(), Vec::new());
    for (i, operand) in op.operands.iter().enumerate() {
        text += if i == 0 { " " } else { ", " };
        text += &match operand {
            Operand::Value(value) => {
                let (from, name) = values.take(function, *value);
                takes.push(from);
                name
            }
            Operand::Weight(weight) => module
                .weights
                .get(weight.index())
                .map_or("@?".to_owned(), |weight| symbol(&without_number(&weight.name))),
            Operand::State(state) => {
                module.states.get(state.index()).map_or("@?".to_owned(), |state| symbol(&without_number(&state.name)))
            }
            Operand::Absent => "_".to_owned(),
        };
    }
    let attrs = op.attrs.iter().zip(row.attrs).map(|(attr, row)| attr_text(row.name, attr, section));
    let attrs: Vec<String> = attrs.collect();
    if !attrs.is_empty() {
        // Writing to a string does not fail.
        let _ = write!(text, " {{{}}}", attrs.join(", "));
    }
    let results = op.results.iter().map(|&value| {
        let ty = function.values.get(value.index()).map_or("?".to_owned(), |data| type_text(module, &data.ty));
        (values.define(function, at, value), ty)
    });
    let results = results.collect();
    let names = names(module, op).map(without_number).collect();
    OpLine { text, op: row.mnemonic, results, takes, names }
}

/// Returns the section of each op.
fn op_sections(module: &Module, function: &Function) -> Vec<Section> {
    let layers: Vec<ItemLayers> = function.ops.iter().map(|op| ItemLayers::from_names(names(module, op))).collect();
    sections(&layers)
}

/// Returns the lines of each section's ops, and the definitions of its values from other sections.
fn lines(module: &Module) -> (BTreeMap<Section, Vec<OpLine>>, BTreeMap<Section, Vec<Definition>>) {
    let (mut lines, mut from) = (BTreeMap::<Section, Vec<OpLine>>::new(), BTreeMap::new());
    let Some(function) = function(module) else { return (lines, from) };
    let mut values: BTreeMap<Section, Values> = BTreeMap::new();
    let mut places: HashMap<ValueId, (Section, usize)> = HashMap::new();
    for (op, section) in function.ops.iter().zip(op_sections(module, function)) {
        let body = lines.entry(section).or_default();
        let at = body.len();
        body.push(line(module, function, op, section, at, values.entry(section).or_default()));
        places.extend(op.results.iter().map(|&value| (value, (section, at))));
    }
    for (section, values) in values {
        from.insert(section, values.others.iter().map(|value| places.get(value).copied()).collect());
    }
    (lines, from)
}

impl Graph {
    /// Creates the view of a module after a pass.
    pub fn from_module(module: &Module, after: Option<&'static str>) -> Graph {
        let (lines, from) = lines(module);
        let parameters = function(module).map_or_else(Vec::new, |function| {
            let parameter = |value: &ValueId| {
                let data = function.values.get(value.index())?;
                Some((format!("%{}", data.name.as_deref().unwrap_or("?")), type_text(module, &data.ty)))
            };
            function.params.iter().filter_map(parameter).collect()
        });
        let ops = lines.values().map(Vec::len).sum();
        Graph { after, folded: FoldedSections::new(lines), from: from.into_values().collect(), parameters, ops }
    }
}

/// Counts the ops of a graph.
pub fn ops(module: &Module) -> usize {
    module.functions.iter().map(|function| function.ops.len()).sum()
}

/// Removes the quotes around a declaration's name if only `#`, which replaces its layer number,
/// requires them.
fn plain(declaration: String, name: &str) -> String {
    declaration.replacen(&format!("@{name:?}"), &symbol(name), 1)
}

/// Returns a graph as lines of text: the declarations of each section's weights and states, and its
/// ops. Omits offsets in files.
pub fn text(module: &Module) -> BTreeMap<Section, Vec<String>> {
    let mut text: BTreeMap<Section, Vec<String>> = BTreeMap::new();
    let place = |name: &str| layer_of(name).map_or(Section::In, Section::Layer);
    for weight in &module.weights {
        let part = weight.part.clone().map(|part| Part { tensor: without_number(&part.tensor), ..part });
        let shown = Weight { name: without_number(&weight.name), place: None, part, ..weight.clone() };
        text.entry(place(&weight.name)).or_default().push(plain(shown.to_string(), &shown.name));
    }
    for state in &module.states {
        let shown = State { name: without_number(&state.name), ..state.clone() };
        text.entry(place(&state.name)).or_default().push(plain(shown.to_string(), &shown.name));
    }
    for (section, ops) in lines(module).0 {
        let lines = ops.into_iter().map(|op| {
            let (names, types): (Vec<String>, Vec<String>) = op.results.into_iter().unzip();
            format!("{} = {} : {}", names.join(", "), op.text, types.join(", "))
        });
        text.entry(section).or_default().extend(lines);
    }
    text
}
