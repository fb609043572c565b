//! Typed views of ops. Each row of the op table has a struct, whose fields are the op's operands
//! and attributes.
//!
//! ```text
//! RmsNorm "rms_norm" (x: Value, w: Weight) {eps: FLOAT} -> 1 Pure     // the row
//! pub struct RmsNorm { pub x: ValueId, pub w: WeightId, pub eps: f64 }
//! ```
//!
//! ```
//! use ixc_ir::graph::{OpView, parse::parse, view};
//!
//! let module = parse("weight @w : f32[4]\nfunc @f(%x: f32[T, 4]) -> (f32[T, 4]) {
//!   %y = rms_norm %x, @w {eps = 1e-6}\n  return %y\n}")?;
//! let op = &module.functions[0].ops[0];
//! let norm = view::RmsNorm::from_op(op).ok_or("another op")?;
//! assert_eq!((norm.x, norm.eps), (module.functions[0].params[0], f64::from(1e-6f32)));
//! assert_eq!((norm.operands(), norm.attrs()), (op.operands.clone(), op.attrs.clone()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! If the operands or attributes of an op do not match its row of the op table, the op has no view.

use super::attr::Attr;
use super::attrs::{Activation, KeyHeads, Prefetch, RopeScaling, RopeStyle, RouteScore};
use super::op::{OpKind, Recurrent, Unary, graph_ops};
use super::{Op, Operand, StateId, ValueId, WeightId};
use crate::format::Format;

/// A typed view of an op: a struct with its operands and attributes as fields.
pub trait OpView: Sized {
    /// Kind of the op that this type is a view of.
    const KIND: OpKind;
    /// Results of the op, in the order of the op table.
    type Results: for<'a> TryFrom<&'a [ValueId]>;

    /// Returns the view of an op. Returns `None` for an op of another kind, and for an op whose
    /// operands or attributes do not match the op table.
    fn from_op(op: &Op) -> Option<Self>;

    /// Returns the op's operands, in the order of the op table.
    fn operands(&self) -> Vec<Operand>;

    /// Returns the op's attributes, in the order of the op table.
    fn attrs(&self) -> Vec<Attr>;

    /// Returns the values that the op defines. Returns `None` for an op of another kind, and for an
    /// op with a wrong number of results.
    fn results(op: &Op) -> Option<Self::Results> {
        (op.kind == Self::KIND).then(|| Self::Results::try_from(&op.results).ok()).flatten()
    }
}

/// Conversion between a field of a view and an operand or attribute of an op.
trait Field<T>: Sized {
    fn read(from: &T) -> Option<Self>;
    fn write(&self) -> T;
}

macro_rules! field {
    ($ty:ty, $of:ident::$variant:ident) => {
        impl Field<$of> for $ty {
            fn read(from: &$of) -> Option<$ty> {
                match from {
                    $of::$variant(value) => Some(*value),
                    _ => None,
                }
            }

            fn write(&self) -> $of {
                $of::$variant(*self)
            }
        }
    };
}

field!(ValueId, Operand::Value);
field!(WeightId, Operand::Weight);
field!(StateId, Operand::State);
field!(i64, Attr::Int);
field!(bool, Attr::Bool);
field!(Format, Attr::Format);

impl<T: Field<Operand>> Field<Operand> for Option<T> {
    fn read(from: &Operand) -> Option<Option<T>> {
        match from {
            Operand::Absent => Some(None),
            operand => T::read(operand).map(Some),
        }
    }

    fn write(&self) -> Operand {
        self.as_ref().map_or(Operand::Absent, T::write)
    }
}

impl Field<Attr> for f64 {
    fn read(from: &Attr) -> Option<f64> {
        match from {
            Attr::Float(value) => Some(f64::from(*value)),
            _ => None,
        }
    }

    fn write(&self) -> Attr {
        Attr::rounded(*self)
    }
}

macro_rules! word_fields {
    ($($ty:ty),*) => {
        $(impl Field<Attr> for $ty {
            fn read(from: &Attr) -> Option<$ty> {
                match from {
                    Attr::Word(word) => <$ty>::from_word(word),
                    _ => None,
                }
            }

            fn write(&self) -> Attr {
                Attr::Word(self.word().to_string())
            }
        })*
    };
}

word_fields!(RopeStyle, RopeScaling, RouteScore, Activation, KeyHeads, Prefetch);

/// Type of a view's field for each kind of operand or attribute, by its word in the op table.
macro_rules! field_type {
    (Value) => { ValueId };
    (Weight) => { WeightId };
    (State) => { StateId };
    (OptValue) => { Option<ValueId> };
    (OptWeight) => { Option<WeightId> };
    (INT) => { i64 };
    (OPT_INT) => { i64 };
    (FLOAT) => { f64 };
    (OPT_FLOAT) => { f64 };
    (BOOL) => { bool };
    (FORMAT) => { Format };
    (STYLE) => { RopeStyle };
    (SCALING) => { RopeScaling };
    (SCORE) => { RouteScore };
    (ACT) => { Activation };
    (KEYS) => { KeyHeads };
    (WHEN) => { Prefetch };
}

macro_rules! view {
    ($name:ident, $kind:expr, $mnemonic:literal ($($operand:ident: $okind:ident),*) {$($attr:ident: $akind:ident),*} -> $results:literal) => {
        #[doc = concat!("`", $mnemonic, "`.")]
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $name {
            $(#[doc = concat!("Operand `", stringify!($operand), "`.")] pub $operand: field_type!($okind),)*
            $(#[doc = concat!("Attribute `", stringify!($attr), "`.")] pub $attr: field_type!($akind),)*
        }

        impl OpView for $name {
            const KIND: OpKind = $kind;
            type Results = [ValueId; $results];

            fn from_op(op: &Op) -> Option<$name> {
                if op.kind != Self::KIND {
                    return None;
                }
                let [$($operand),*] = &op.operands[..] else { return None };
                let [$($attr),*] = &op.attrs[..] else { return None };
                Some($name { $($operand: Field::read($operand)?,)* $($attr: Field::read($attr)?,)* })
            }

            fn operands(&self) -> Vec<Operand> {
                vec![$(self.$operand.write()),*]
            }

            fn attrs(&self) -> Vec<Attr> {
                vec![$(self.$attr.write()),*]
            }
        }
    };
}

macro_rules! views {
    (
        $($variant:ident $mnemonic:literal ($($operand:ident: $okind:ident),*) {$($attr:ident: $akind:ident),*} -> $results:literal $effect:ident, $doc:literal;)*
        @unary {
            $($unary:ident $unary_mnemonic:literal {$($unary_attr:ident: $unary_akind:ident),*} |$x:ident| $function:expr, $unary_doc:literal;)*
        }
        @recurrent {
            $($recurrent:ident $recurrent_mnemonic:literal ($($recurrent_operand:ident: $recurrent_okind:ident),*) {$($recurrent_attr:ident: $recurrent_akind:ident),*} $recurrent_doc:literal;)*
        }
        $($later:ident $later_mnemonic:literal ($($later_operand:ident: $later_okind:ident),*) {$($later_attr:ident: $later_akind:ident),*} -> $later_results:literal $later_effect:ident, $later_doc:literal;)*
    ) => {
        $(view!($variant, OpKind::$variant, $mnemonic ($($operand: $okind),*) {$($attr: $akind),*} -> $results);)*
        $(view!($unary, OpKind::Unary(Unary::$unary), $unary_mnemonic (x: Value) {$($unary_attr: $unary_akind),*} -> 1);)*
        $(view!(
            $recurrent, OpKind::Recurrent(Recurrent::$recurrent),
            $recurrent_mnemonic (state: Value, $($recurrent_operand: $recurrent_okind),*) {$($recurrent_attr: $recurrent_akind),*} -> 2
        );)*
        $(view!($later, OpKind::$later, $later_mnemonic ($($later_operand: $later_okind),*) {$($later_attr: $later_akind),*} -> $later_results);)*

        /// Whether conversion of an op to its view and back gives the same op, with the number of
        /// results in the op table.
        #[cfg(test)]
        fn reads_back(op: &Op) -> bool {
            fn same<V: OpView>(op: &Op) -> bool {
                V::from_op(op).is_some_and(|view| (view.operands(), view.attrs()) == (op.operands.clone(), op.attrs.clone()))
                    && V::results(op).is_some()
            }
            match op.kind {
                $(OpKind::$variant => same::<$variant>(op),)*
                $(OpKind::Unary(Unary::$unary) => same::<$unary>(op),)*
                $(OpKind::Recurrent(Recurrent::$recurrent) => same::<$recurrent>(op),)*
                $(OpKind::$later => same::<$later>(op),)*
            }
        }
    };
}

graph_ops!(views);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Module;
    use ixc_testing::random_graphs::{Formats, mutated_module, random_module};

    /// Returns the module converted to the types of this crate. The generator uses another build of
    /// the library, with distinct types.
    fn convert_module(module: &impl serde::Serialize) -> Module {
        postcard::from_bytes(&postcard::to_allocvec(module).unwrap()).unwrap()
    }

    /// Tests random modules. They contain every op of the table (`random_modules_cover_every_op`).
    #[test]
    fn op_views_convert_back_to_the_op() {
        for seed in 0..20 {
            let module = convert_module(&random_module(seed, Formats::All).module);
            for op in &module.functions[0].ops {
                assert!(reads_back(op), "seed {seed}: {op:?}");
            }
        }
    }

    #[test]
    fn malformed_op_has_no_view() {
        let op = Op {
            kind: OpKind::Quantise,
            operands: vec![Operand::Value(ValueId(0))],
            attrs: vec![Attr::Format(Format::F32)],
            results: vec![ValueId(1)],
        };
        assert_eq!(Quantise::from_op(&op), Some(Quantise { x: ValueId(0), format: Format::F32 }));
        assert_eq!(Quantise::results(&op), Some([ValueId(1)]));
        let quantise = |change: &dyn Fn(&mut Op)| {
            let mut op = op.clone();
            change(&mut op);
            Quantise::from_op(&op)
        };
        assert_eq!(quantise(&|op| op.kind = OpKind::MergeHeads), None);
        assert_eq!(quantise(&|op| op.operands[0] = Operand::Absent), None);
        assert_eq!(quantise(&|op| op.operands.push(Operand::Absent)), None);
        assert_eq!(quantise(&|op| op.attrs[0] = Attr::Int(1)), None);
        assert_eq!(quantise(&|op| op.attrs.clear()), None);
        assert_eq!(Quantise::results(&Op { results: Vec::new(), ..op.clone() }), None);
        assert_eq!(RmsNorm::from_op(&op), None);
        // Other random changes must give a view or no view, but never a panic.
        for seed in 0..200 {
            let module = convert_module(&mutated_module(seed));
            module.functions.iter().flat_map(|function| &function.ops).for_each(|op| {
                let _ = reads_back(op);
            });
        }
    }
}
