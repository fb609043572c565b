//! Printer of modules as text, by `Display`. [`super::parse`] parses the text.
//!
//! A value without a name is `%N`, where N is its number in the order of definitions, parameters
//! included. Absent operands are `_`. Every op line ends with the types of the op's results.
//! Weights are printed as symbols, never as bytes. Tensor names with characters other than those of
//! plain names are quoted.
//!
//! ```text
//! weight @"blk.0 attn" : q4_k[512, 256] {file = 0, offset = 0x1a000}
//! func @f(%x: f32[T, 256], %1: i32[L]) -> (f32[L, 512]) {
//!   %2 = take_rows %x, %1 : f32[L, 256]
//!   %3 = quantise %2 {format = a8_super} : a8_super[L, 256]
//!   %4 = linear %3, @"blk.0 attn", _, _ : f32[L, 512]
//!   return %4
//! }
//! ```
//!
//! The input is any module, also one that the verifier rejects. A value without a definition is
//! `%?`.

use std::fmt::{self, Display, Formatter, Write};
use std::ops::Range;

use super::attr::Attr;
use super::number::definition_order;
use super::op::AttrRow;
use super::verify::is_name;
use super::{Function, Module, Op, Operand, Part, Shard, State, TokenOwner, Type, ValueId, Weight, WeightChoices};

impl Display for Module {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for weight in &self.weights {
            writeln!(f, "{weight}")?;
        }
        for state in &self.states {
            writeln!(f, "{state}")?;
        }
        for (i, function) in self.functions.iter().enumerate() {
            if i > 0 || !self.weights.is_empty() || !self.states.is_empty() {
                f.write_str("\n")?;
            }
            Text::new(self, function).function(f)?;
        }
        Ok(())
    }
}

impl Display for Weight {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("weight ")?;
        write_symbol(f, &self.name)?;
        write!(f, " : {}{:?}", self.format, self.shape)?;
        let mut attrs = Vec::new();
        if let Some(place) = self.place {
            attrs.push(format!("file = {}, offset = {:#x}", place.file, place.offset));
        }
        if let Some(Part { tensor, rows, from }) = &self.part {
            attrs.push(format!("tensor = {}, rows = {rows}, from = {from}", Quoted(tensor)));
        }
        let WeightChoices { stored, layout, activations, tile, why, shard } = &self.choice;
        attrs.extend(shard.iter().map(Shard::to_string));
        let formats = [("stored", stored), ("layout", layout), ("activations", activations)];
        attrs.extend(formats.into_iter().filter_map(|(name, format)| Some(format!("{name} = {}", (*format)?))));
        let texts = [("tile", tile), ("why", why)];
        attrs.extend(texts.into_iter().filter_map(|(name, text)| Some(format!("{name} = {}", Quoted(text.as_ref()?)))));
        if attrs.is_empty() { Ok(()) } else { write!(f, " {{{}}}", attrs.join(", ")) }
    }
}

impl Display for State {
    /// Writes the state. Attributes that equal the defaults of the state's kind are omitted.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let row = self.kind.row();
        f.write_str("state ")?;
        write_symbol(f, &self.name)?;
        write!(f, " : {}", row.name)?;
        for (i, field) in self.fields.iter().enumerate() {
            write!(f, "{}{field}", if i == 0 { " " } else { ", " })?;
        }
        let rollback = (row.rollbacks != [self.rollback]).then(|| format!("rollback = {}", self.rollback.word()));
        let window = self.window.map(|window| format!("window = {window}"));
        let every = (self.every != 1).then(|| format!("every = {}", self.every));
        let chunked = self.chunked.then(|| "chunked = true".to_string());
        let attrs: Vec<String> = rollback.into_iter().chain(window).chain(chunked).chain(every).collect();
        if attrs.is_empty() { Ok(()) } else { write!(f, " {{{}}}", attrs.join(", ")) }
    }
}

impl Type {
    /// Returns the type as text. States have the names that the module gives them.
    pub fn text(&self, module: &Module) -> String {
        let Type::Token(TokenOwner::State(state)) = self else { return self.to_string() };
        match module.states.get(state.index()) {
            Some(state) => format!("token<{}>", Symbol(&state.name)),
            None => format!("token<@?{}>", state.0),
        }
    }
}

/// A symbol as text: `@name`, quoted if it is not a plain name.
struct Symbol<'a>(&'a str);

impl Display for Symbol<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_symbol(f, self.0)
    }
}

impl Display for Attr {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Attr::Int(v) => write!(f, "{v}"),
            // `Debug` writes the shortest text that reads back to the same bits.
            Attr::Float(v) => write!(f, "{v:?}"),
            Attr::Bool(v) => write!(f, "{v}"),
            Attr::Word(v) => f.write_str(v),
            Attr::Format(v) => write!(f, "{v}"),
        }
    }
}

/// Returns one function of a module as text.
pub fn function_text(module: &Module, function: &Function) -> String {
    fmt::from_fn(|f| Text::new(module, function).function(f)).to_string()
}

/// Writes `@name`, quoted if it is not a plain name.
fn write_symbol(f: &mut Formatter<'_>, name: &str) -> fmt::Result {
    if is_name(name) {
        return write!(f, "@{name}");
    }
    write!(f, "@{}", Quoted(name))
}

impl Display for Shard {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Shard { weight, dim, of, ranges } = self;
        write!(f, "shard = {}, dim = {dim}, of = {of}, ranges = \"", Quoted(weight))?;
        for (i, Range { start, end }) in ranges.iter().enumerate() {
            write!(f, "{}{start}..{end}", if i == 0 { "" } else { " " })?;
        }
        f.write_str("\"")
    }
}

/// A string as text in quotes, on one line.
pub(super) struct Quoted<'a>(pub(super) &'a str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                c if c.is_control() => write!(f, "\\u{{{:x}}}", u32::from(c))?,
                c => f.write_char(c)?,
            }
        }
        f.write_str("\"")
    }
}

/// A function, for printing as text.
pub(super) struct Text<'a> {
    module: &'a Module,
    function: &'a Function,
    /// Number of each value in the order of definitions, printed for values without a name. `None`
    /// if the value has no definition.
    numbers: Vec<Option<usize>>,
}

impl<'a> Text<'a> {
    pub(super) fn new(module: &'a Module, function: &'a Function) -> Text<'a> {
        let mut numbers = vec![None; function.values.len()];
        for (number, value) in definition_order(function).into_iter().enumerate() {
            if let Some(slot) = numbers.get_mut(value.index()) {
                slot.get_or_insert(number);
            }
        }
        Text { module, function, numbers }
    }

    fn function(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("func ")?;
        write_symbol(f, &self.function.name)?;
        f.write_str("(")?;
        for (i, &param) in self.function.params.iter().enumerate() {
            f.write_str(separator(i))?;
            self.value(f, param)?;
            f.write_str(": ")?;
            self.ty(f, param)?;
        }
        f.write_str(") -> (")?;
        for (i, &result) in self.function.results.iter().enumerate() {
            f.write_str(separator(i))?;
            self.ty(f, result)?;
        }
        f.write_str(") {\n")?;
        for op in &self.function.ops {
            self.op(f, op)?;
        }
        f.write_str("  return")?;
        for (i, &result) in self.function.results.iter().enumerate() {
            f.write_str(if i == 0 { " " } else { ", " })?;
            self.value(f, result)?;
        }
        f.write_str("\n}\n")
    }

    fn op(&self, f: &mut Formatter<'_>, op: &Op) -> fmt::Result {
        f.write_str("  ")?;
        for (i, &result) in op.results.iter().enumerate() {
            f.write_str(separator(i))?;
            self.value(f, result)?;
        }
        f.write_str(" = ")?;
        self.write_computation(f, op)?;
        for (i, &result) in op.results.iter().enumerate() {
            f.write_str(if i == 0 { " : " } else { ", " })?;
            self.ty(f, result)?;
        }
        f.write_str("\n")
    }

    /// Writes an op without its results and the `=` after them.
    pub(super) fn write_computation(&self, f: &mut Formatter<'_>, op: &Op) -> fmt::Result {
        let row = op.kind.row();
        f.write_str(row.mnemonic)?;
        for (i, operand) in op.operands.iter().enumerate() {
            f.write_str(if i == 0 { " " } else { ", " })?;
            match operand {
                Operand::Value(value) => self.value(f, *value)?,
                Operand::Weight(weight) => match self.module.weights.get(weight.index()) {
                    Some(weight) => write_symbol(f, &weight.name)?,
                    None => write!(f, "@?{}", weight.0)?,
                },
                Operand::State(state) => match self.module.states.get(state.index()) {
                    Some(state) => write_symbol(f, &state.name)?,
                    None => write!(f, "@?{}", state.0)?,
                },
                Operand::Absent => f.write_str("_")?,
            }
        }
        if !op.attrs.is_empty() {
            f.write_str(" {")?;
            let said = |(i, attr): &(usize, &Attr)| row.attrs.get(*i).and_then(AttrRow::absent).as_ref() != Some(*attr);
            for (n, (i, attr)) in op.attrs.iter().enumerate().filter(said).enumerate() {
                write!(f, "{}{} = {attr}", separator(n), row.attrs.get(i).map_or("?", |attr| attr.name))?;
            }
            f.write_str("}")?;
        }
        Ok(())
    }

    pub(super) fn value(&self, f: &mut Formatter<'_>, value: ValueId) -> fmt::Result {
        match self.function.values.get(value.index()).map(|value| &value.name) {
            Some(Some(name)) => write!(f, "%{name}"),
            Some(None) | None => match self.numbers.get(value.index()) {
                Some(Some(number)) => write!(f, "%{number}"),
                Some(None) | None => write!(f, "%?{}", value.0),
            },
        }
    }

    pub(super) fn ty(&self, f: &mut Formatter<'_>, value: ValueId) -> fmt::Result {
        match self.function.values.get(value.index()) {
            Some(value) => f.write_str(&value.ty.text(self.module)),
            None => f.write_str("?"),
        }
    }
}

fn separator(i: usize) -> &'static str {
    if i == 0 { "" } else { ", " }
}
