//! The reference interpreter: the definition of every op.
//!
//! Values are f32. Within an op, all sums are in f64 and rounded once, at the result. The format
//! table dequantises weights. A fused op is defined as the ops that it replaces, rounding included.
//! Its activations are dequantised and multiplied exactly, so a kernel may differ only in the order
//! of its sums.
//!
//! RoPE, routing and attention are in [`math`], quantisation in [`super::quantise`]. State is f32.
//! If a state is declared in a format with blocks, each appended row is rounded to that format
//! ([`crate::cache`]).
//!
//! ```
//! use ixc_ir::graph::builder::GraphBuilder;
//! use ixc_ir::graph::interpret::{Interpreter, Value};
//! use ixc_ir::graph::{Dim, Type};
//!
//! let mut b = GraphBuilder::new("double");
//! let x = b.param("x", Type::f32([Dim::symbol("T"), Dim::Fixed(2)]));
//! let y = b.add(x, x).unwrap();
//! let module = b.finish(&[y]);
//!
//! let weights: Vec<Vec<u8>> = vec![];
//! let mut interpreter = Interpreter::new(&module, &weights).unwrap();
//! let x = Value::F32 { dims: vec![1, 2], data: vec![1.0, -3.0] };
//! let y = Value::F32 { dims: vec![1, 2], data: vec![2.0, -6.0] };
//! assert_eq!(interpreter.run("double", vec![x]).unwrap(), [y]);
//! ```
//!
//! The input is any module, which is verified first. Conditions on data (ids, positions, lengths)
//! are checked at each use.

mod attention;
pub mod math;
mod products;
mod streams;
mod value;

pub use value::{InterpretError, SourceError, Value, WeightSource};

use std::borrow::Cow;
use std::collections::HashMap;

use self::attention::Lists;
use self::math::Matrix;
use self::products::{combine, expert_project, heads_project};
use super::attrs::{GateAttrs, RopeAttrs, RouteAttrs, RouteScore, TemperatureAttrs, ngram_hash};
use super::op::{OpKind, Recurrent};
use super::quantise::{quantise, quantise_rows};
use super::recurrent;
use super::verify::verify;
use super::{Dim, Element, Field, Function, Held, Module, Op, Operand, State, StateId, Type, ValueId, WeightId};
use crate::format::Format;
use crate::format::requantise::requantise;
use crate::ngram;
use crate::plan::NOBODY;

/// An interpreter with the states of its module.
pub struct Interpreter<'a> {
    module: &'a Module,
    weights: &'a dyn WeightSource,
    /// Elements of each field, by state. Fields with positions are `[position][column][element]`,
    /// for the positions so far.
    states: Vec<Vec<Vec<f32>>>,
    /// Maximum number of positions of a sequence.
    context: u64,
}

/// Returns the fields of a state at the start of a sequence.
fn empty(state: &State) -> Vec<Vec<f32>> {
    let elements = |field: &Field| field.dims.iter().map(|dim| dim.fixed().unwrap_or(0) as usize).product();
    state.fields.iter().map(|field| vec![0.0; elements(field)]).collect()
}

impl<'a> Interpreter<'a> {
    /// Returns an interpreter at the start of a sequence.
    ///
    /// # Errors
    /// The module does not verify.
    pub fn new(module: &'a Module, weights: &'a dyn WeightSource) -> Result<Interpreter<'a>, InterpretError> {
        verify(module)?;
        Ok(Interpreter { module, weights, states: module.states.iter().map(empty).collect(), context: u64::MAX })
    }

    /// Sets the maximum number of positions of a sequence. The default is no maximum. The
    /// interpreter does not check it; it only selects the frequencies of rotations that have two
    /// sets.
    #[must_use]
    pub fn within(self, context: u64) -> Interpreter<'a> {
        Interpreter { context, ..self }
    }

    /// Goes back to the start of a sequence.
    pub fn reset(&mut self) {
        self.states = self.module.states.iter().map(empty).collect();
    }

    /// Runs one step of a model and returns the logits of `rows`, row-major. States are kept for
    /// Runs one step of a model and returns the logits of `rows`, row-major. States are kept for
    /// the next step.
    ///
    /// # Errors
    /// See [`Interpreter::run`].
    pub fn step(&mut self, tokens: &[u32], positions: &[u32], rows: &[u32]) -> Result<Vec<f32>, InterpretError> {
        let i32s = |name: &str, data: &[u32]| {
            let wide = |_| InterpretError::Argument {
                name: format!("%{name}"),
                found: "a number outside i32".to_string(),
                expected: "in the range of i32".to_string(),
            };
            let ints: Result<Vec<i32>, _> = data.iter().map(|&n| i32::try_from(n)).collect();
            Ok::<Value, InterpretError>(Value::I32 { dims: vec![data.len()], data: ints.map_err(wide)? })
        };
        let args = vec![i32s("ids", tokens)?, i32s("pos", positions)?, i32s("rows", rows)?];
        match self.run("step", args)?.into_iter().next() {
            Some(Value::F32 { data, .. }) => Ok(data),
            Some(_) | None => Err(InterpretError::NoFunction { name: "step whose first result is logits".to_string() }),
        }
    }

    /// Evaluates a function.
    ///
    /// # Errors
    /// Arguments do not fit, a weight cannot be read, or an id, row or position is out of range.
    pub fn run(&mut self, function: &str, args: Vec<Value>) -> Result<Vec<Value>, InterpretError> {
        let module = self.module;
        let function = module
            .functions
            .iter()
            .find(|f| f.name == function)
            .ok_or_else(|| InterpretError::NoFunction { name: function.to_string() })?;
        let mut env = Env { function, values: vec![None; function.values.len()] };
        self.bind(&mut env, args)?;
        for op in &function.ops {
            let results = self.eval(op, &env)?;
            for (id, value) in op.results.iter().zip(results) {
                env.values[id.index()] = Some(value);
            }
        }
        let mut results = Vec::with_capacity(function.results.len());
        for &id in &function.results {
            results.push(match env.get(id) {
                Value::Weight(weight) => {
                    let data = self.dequantised(*weight)?;
                    Value::F32 { dims: self.weight_dims(*weight), data }
                }
                value => value.clone(),
            });
        }
        Ok(results)
    }

    fn bind(&self, env: &mut Env<'_>, args: Vec<Value>) -> Result<(), InterpretError> {
        let function = env.function;
        if args.len() != function.params.len() {
            return Err(InterpretError::ArgumentCount {
                function: function.name.clone(),
                expected: function.params.len(),
                found: args.len(),
            });
        }
        let mut symbols: HashMap<&str, usize> = HashMap::new();
        for (&param, arg) in function.params.iter().zip(args) {
            let ty = function.ty(param);
            if !self.fits(ty, &arg, &mut symbols) {
                return Err(InterpretError::Argument {
                    name: function.label(param),
                    found: self.describe(&arg),
                    expected: format!("{} with {symbols:?}", ty.text(self.module)),
                });
            }
            env.values[param.index()] = Some(arg);
        }
        Ok(())
    }

    fn fits<'t>(&self, ty: &'t Type, arg: &Value, symbols: &mut HashMap<&'t str, usize>) -> bool {
        let (element, dims) = match ty {
            Type::Token(_) => return *arg == Value::Token,
            Type::Tensor { element, dims } => (*element, dims),
        };
        let count = |dims: &[usize]| dims.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
        let (found, arg_dims, whole) = match arg {
            Value::F32 { dims, data } => (Element::Format(Format::F32), dims, count(dims) == Some(data.len())),
            Value::I32 { dims, data } => (Element::I32, dims, count(dims) == Some(data.len())),
            Value::Blocks { format, dims, bytes } => {
                let row = dims.last().copied().unwrap_or(0);
                let whole = format.elements(bytes.len(), row).is_some_and(|elements| count(dims) == Some(elements));
                (Element::Format(*format), dims, whole)
            }
            Value::Weight(_) | Value::Token => return false,
        };
        found == element
            && whole
            && dims.len() == arg_dims.len()
            && dims.iter().zip(arg_dims).all(|(dim, &n)| match dim {
                Dim::Fixed(dim) => *dim == n as u64,
                Dim::Symbol(name) => *symbols.entry(name).or_insert(n) == n,
            })
    }

    fn describe(&self, value: &Value) -> String {
        match value {
            Value::F32 { dims, data } => format!("f32{dims:?} of {} elements", data.len()),
            Value::I32 { dims, data } => format!("i32{dims:?} of {} elements", data.len()),
            Value::Blocks { format, dims, bytes } => format!("{format}{dims:?} of {} bytes", bytes.len()),
            Value::Weight(weight) => format!("weight number {}", weight.0),
            Value::Token => "a token".to_string(),
        }
    }

    /// Returns the results of an op. This is the definition of every op; the names are those of the
    /// op table.
    fn eval(&mut self, op: &Op, env: &Env<'_>) -> Result<Vec<Value>, InterpretError> {
        let mnemonic = op.kind.row().mnemonic;
        let value = |name: &str| env.get(operand_value(op, name));
        let f32s = |this: &Self, name: &str| this.floats(value(name));
        let one = |dims: Vec<usize>, data: Vec<f32>| Ok(vec![Value::F32 { dims, data }]);
        match op.kind {
            OpKind::Embed => {
                let ids = ints(value("ids"));
                let bytes = self.bytes(weight(op, "table"))?;
                let table = self.matrix(weight(op, "table"), &bytes);
                let rows = bytes.len() / table.row_bytes();
                let mut data = Vec::with_capacity(ids.len() * table.width);
                for &id in ids {
                    let row = index(mnemonic, "id", id, rows)?;
                    data.extend(table.rows(row, 1).dequantise());
                }
                one(vec![ids.len(), table.width], data)
            }
            OpKind::Dequantise => Ok(vec![Value::Weight(weight(op, "w"))]),
            OpKind::Matmul => {
                let (x, dims) = (f32s(self, "x")?, self.dims(value("x")));
                let (data, n) = match value("w") {
                    Value::Weight(w) => (self.project(*w, &x)?, self.weight_dims(*w)[0]),
                    w => {
                        let (w, dims) = (self.floats(w)?, self.dims(w));
                        let bytes = quantise(Format::F32, &w);
                        (Matrix { format: Format::F32, bytes: &bytes, width: dims[1] }.project(&x), dims[0])
                    }
                };
                one(with(&dims, n), data)
            }
            OpKind::Add => one(self.dims(value("a")), add(&f32s(self, "a")?, &f32s(self, "b")?)),
            OpKind::AddBias => {
                let bias = self.dequantised(weight(op, "bias"))?;
                one(self.dims(value("x")), add_bias(&f32s(self, "x")?, &bias))
            }
            OpKind::Mul => one(self.dims(value("a")), mul(&f32s(self, "a")?, &f32s(self, "b")?)),
            OpKind::Gated => {
                let y = math::gated(&f32s(self, "gate")?, &f32s(self, "up")?, &GateAttrs::from_op(op));
                one(self.dims(value("gate")), y)
            }
            OpKind::ScaleHeads => {
                let (dims, heads) = (self.dims(value("x")), self.dims(value("s"))[1]);
                let residual = match op.operand("residual") {
                    Operand::Value(residual) => Some(self.floats(env.get(residual))?),
                    Operand::Weight(_) | Operand::State(_) | Operand::Absent => None,
                };
                let y = scale_heads(&f32s(self, "x")?, &f32s(self, "s")?, dims[1] / heads, residual.as_deref());
                one(dims, y)
            }
            OpKind::Unary(function) => {
                let y = f32s(self, "x")?.iter().map(|&x| function.apply(x, &op.attrs)).collect();
                one(self.dims(value("x")), y)
            }
            OpKind::RmsNorm => one(self.dims(value("x")), self.rms_norm(op, env)?),
            OpKind::SplitHeads => {
                let (dims, heads) = (self.dims(value("x")), op.attr("heads").int() as usize);
                one(vec![dims[0], heads, dims[1] / heads], f32s(self, "x")?.into_owned())
            }
            OpKind::MergeHeads => {
                let dims = self.dims(value("x"));
                one(vec![dims[0], dims[1] * dims[2]], f32s(self, "x")?.into_owned())
            }
            OpKind::Slice => {
                let (x, dims) = (f32s(self, "x")?, self.dims(value("x")));
                let (from, count) = (op.attr("from").int() as usize, op.attr("count").int() as usize);
                let rows = x.chunks_exact(dims[dims.len() - 1].max(1));
                one(with(&dims, count), rows.flat_map(|row| &row[from..from + count]).copied().collect())
            }
            OpKind::Concat => {
                let (a, b, dims) = (f32s(self, "a")?, f32s(self, "b")?, self.dims(value("a")));
                let width = |x: &Value| self.dims(x)[dims.len() - 1].max(1);
                let (m, n) = (width(value("a")), width(value("b")));
                let rows = a.chunks_exact(m).zip(b.chunks_exact(n));
                one(with(&dims, m + n), rows.flat_map(|(a, b)| a.iter().chain(b)).copied().collect())
            }
            OpKind::Rope => {
                let dims = self.dims(value("x"));
                let factors = self.rope_factors(op)?;
                let rope = RopeAttrs::from_op(op);
                let pos = ints(value("pos"));
                let y = math::rope(&f32s(self, "x")?, dims[1], dims[2], pos, &rope, factors.as_deref());
                one(dims, y)
            }
            OpKind::Temperature => {
                let (x, pos, of) = (f32s(self, "x")?, ints(value("pos")), TemperatureAttrs::from_op(op));
                let dims = self.dims(value("x"));
                let width = dims[1..].iter().product::<usize>().max(1);
                let mut y = Vec::with_capacity(x.len());
                for (row, &position) in x.chunks_exact(width).zip(pos) {
                    let factor = of.factor(index(mnemonic, "position", position, i32::MAX as usize)? as u64);
                    y.extend(row.iter().map(|&x| (f64::from(x) * factor) as f32));
                }
                one(dims, y)
            }
            OpKind::HeadsTemperature => {
                let (x, pos, dims) = (f32s(self, "x")?, ints(value("pos")), self.dims(value("x")));
                let [scales, biases] = ["scales", "biases"].map(|name| self.dequantised(weight(op, name)));
                let (scales, biases) = (scales?, biases?);
                let mut y = Vec::with_capacity(x.len());
                for (row, &position) in x.chunks_exact((dims[1] * dims[2]).max(1)).zip(pos) {
                    let log = (index(mnemonic, "position", position, i32::MAX as usize)? as f64).ln_1p();
                    for (head, (&scale, &bias)) in row.chunks_exact(dims[2].max(1)).zip(scales.iter().zip(&biases)) {
                        let factor = f64::from(bias) + f64::from(scale) * log;
                        y.extend(head.iter().map(|&x| (f64::from(x) * factor) as f32));
                    }
                }
                one(dims, y)
            }
            OpKind::Centre => {
                let (x, dims) = (f32s(self, "x")?, self.dims(value("x")));
                one(dims.clone(), math::centre(&x, dims[dims.len() - 1]))
            }
            OpKind::HeadsSum => {
                let (x, dims) = (f32s(self, "x")?, self.dims(value("x")));
                let sums = x.chunks_exact(dims[2].max(1)).map(|x| x.iter().map(|&x| f64::from(x)).sum::<f64>() as f32);
                one(dims[..2].to_vec(), sums.collect())
            }
            OpKind::Ngram => {
                let hash = ngram_hash(op);
                let [state] = &mut self.states[env.state(op, "tokens").index()][..] else {
                    unreachable!("verified: a recurrent state has one field")
                };
                let Ok(mut before) = <[f32; ngram::BEFORE]>::try_from(&state[..]) else {
                    unreachable!("verified: a state of the ids before")
                };
                let mut data = Vec::new();
                for &id in ints(value("ids")) {
                    let id = index(mnemonic, "id", id, ngram::MAX_IDS as usize)? as u32;
                    data.push(hash.row(id, &before) as i32);
                    ngram::remember(&mut before, id);
                }
                state.copy_from_slice(&before);
                Ok(vec![Value::I32 { dims: vec![data.len()], data }, Value::Token])
            }
            OpKind::Recurrent(kind) => self.recurrent(op, kind, env),
            OpKind::ColumnSquares => {
                let (x, dims) = (self.floats(value("x"))?.into_owned(), self.dims(value("x")));
                let ids = match op.operand("ids") {
                    Operand::Value(ids) => Some(ints(env.get(ids))),
                    _ => None,
                };
                let [sums] = &mut self.states[env.state(op, "sums").index()][..] else {
                    unreachable!("verified: a recurrent state has one field")
                };
                column_squares(sums, &x, &dims, ids)?;
                Ok(vec![Value::Token])
            }
            OpKind::KvAppend => {
                let (k, v) = (value("k"), value("v"));
                let (k, v) = (self.floats(k)?.into_owned(), self.floats(v)?.into_owned());
                self.append(op, env.state(op, "kv"), &k, &v, ints(value("pos")))?;
                Ok(vec![Value::Token])
            }
            OpKind::IndexTopK => {
                let (q, dims) = (f32s(self, "q")?, self.dims(value("q")));
                let state = env.state(op, "kv");
                let [keys, _] = &self.states[state.index()][..] else {
                    unreachable!("verified: state {} has keys and values", state.0)
                };
                let every = self.module.states[state.index()].every as usize;
                let (length, top_k) = (keys.len() / dims[2].max(1), op.attr("top_k").int() as usize);
                let Operand::Value(w) = op.operand("w") else {
                    let [block, local] = ["block", "local"].map(|name| op.attr(name).int() as usize);
                    // Limits the number of columns to the blocks that exist, as below.
                    let top_k = top_k.min(length.next_multiple_of(block).max(local.saturating_mul(block)));
                    let mut data = Vec::with_capacity(dims[0] * dims[1] * top_k);
                    for (q, &position) in q.chunks_exact(dims[1] * dims[2]).zip(ints(value("pos"))) {
                        let position = index(mnemonic, "position", position, length)?;
                        let heads = q.chunks_exact(dims[2]);
                        data.extend(heads.flat_map(|q| math::index_blocks(q, keys, position, [top_k, block, local])));
                    }
                    return Ok(vec![Value::I32 { dims: vec![dims[0], dims[1], top_k], data }, Value::Token]);
                };
                let w = self.floats(env.get(w))?;
                let rows = q.chunks_exact(dims[1] * dims[2]).zip(w.chunks_exact(dims[1])).zip(ints(value("pos")));
                let entries = op.attr("entries").bool();
                // There cannot be more choices than places. Columns with -1 alone are dropped.
                let top_k = top_k.min(if entries { length } else { length.saturating_mul(every) });
                let chosen = if entries { top_k } else { top_k + every - 1 };
                let mut data = Vec::with_capacity(dims[0] * chosen);
                for ((q, w), &position) in rows {
                    let position = index(mnemonic, "position", position, length.saturating_mul(every))?;
                    data.extend(match entries {
                        true => math::index_entries(q, w, keys, position, (top_k, every)),
                        false => math::index_top_k(q, w, keys, position, (top_k, every)),
                    });
                }
                Ok(vec![Value::I32 { dims: vec![dims[0], chosen], data }, Value::Token])
            }
            OpKind::Attention => {
                let q = f32s(self, "q")?;
                let state = env.state(op, "kv");
                let seen = (ints(value("pos")), env.choice(op));
                let (y, dims) = self.attention(op, &[state], &q, &self.dims(value("q")), seen)?;
                Ok(vec![Value::F32 { dims, data: y }, Value::Token])
            }
            OpKind::HeadsMatmul => {
                let (x, dims) = (f32s(self, "x")?, self.dims(value("x")));
                let (y, n) = match value("w") {
                    Value::Weight(w) => self.heads(*w, &x, dims[1])?,
                    w => {
                        let w_dims = self.dims(w);
                        let bytes = quantise(Format::F32, &self.floats(w)?);
                        let matrix = Matrix { format: Format::F32, bytes: &bytes, width: w_dims[2] };
                        (heads_project(&matrix, dims[1], &x), w_dims[1])
                    }
                };
                one(with(&dims, n), y)
            }
            OpKind::LinearHeads => {
                let dims = self.dims(value("x"));
                let (y, n) = self.heads(weight(op, "w"), &f32s(self, "x")?, dims[1])?;
                one(with(&dims, n), y)
            }
            OpKind::Route => {
                let dims = self.dims(value("logits"));
                let route = RouteAttrs::from_op(op);
                let (bias, scales) = (self.optional(op.operand("bias"))?, self.optional(op.operand("scales"))?);
                let vectors = [bias.as_deref(), scales.as_deref()];
                let (ids, weights) = math::route(&f32s(self, "logits")?, dims[1], vectors, &route);
                let dims = vec![dims[0], route.top_k as usize];
                Ok(vec![Value::I32 { dims: dims.clone(), data: ids }, Value::F32 { dims, data: weights }])
            }
            OpKind::ExpertMatmul => {
                let (x, ids) = (f32s(self, "x")?, value("ids"));
                let id_dims = self.dims(ids);
                let (y, n) = match value("w") {
                    Value::Weight(w) => self.experts(mnemonic, *w, &x, ints(ids), id_dims[1])?,
                    w => {
                        let dims = self.dims(w);
                        let bytes = quantise(Format::F32, &self.floats(w)?);
                        let matrix = Matrix { format: Format::F32, bytes: &bytes, width: dims[2] };
                        (expert_project(mnemonic, &matrix, dims[0], &x, ints(ids), id_dims[1])?, dims[1])
                    }
                };
                one(with_new(&id_dims, n), y)
            }
            OpKind::ExpertAddBias => {
                let (y, ids) = (f32s(self, "y")?, ints(value("ids")));
                one(self.dims(value("y")), self.add_expert_bias(mnemonic, &y, ids, weight(op, "bias"))?)
            }
            OpKind::ExpertScale => {
                let (y, dims, ids) = (f32s(self, "y")?, self.dims(value("y")), ints(value("ids")));
                let factors = self.dequantised(weight(op, "s"))?;
                let mut out = Vec::with_capacity(y.len());
                for (y, &id) in y.chunks_exact(dims[2]).zip(ids) {
                    let factor = factors[index(mnemonic, "expert", id, factors.len())?];
                    out.extend(y.iter().map(|y| y * factor));
                }
                one(dims, out)
            }
            OpKind::ExpertCombine => {
                let dims = self.dims(value("y"));
                let y = combine(&f32s(self, "y")?, &f32s(self, "p")?, dims[1], dims[2]);
                one(vec![dims[0], dims[2]], y)
            }
            OpKind::Positions => {
                let (every, back) = (op.attr("every").int() as i32, op.attr("back").bool());
                let whole = |position: i32| position - position.rem_euclid(every);
                let data = ints(value("pos")).iter().map(|&p| if back { -whole(p) } else { whole(p) }).collect();
                Ok(vec![Value::I32 { dims: self.dims(value("pos")), data }])
            }
            OpKind::Ends => {
                let pos = ints(value("pos"));
                let last = pos.iter().copied().max().unwrap_or_default();
                Ok(vec![Value::I32 { dims: self.dims(value("pos")), data: vec![last; pos.len()] }])
            }
            OpKind::AttentionEntries => {
                let q = f32s(self, "q")?;
                let states = ["kv", "entries"].map(|token| env.state(op, token));
                let seen = (ints(value("pos")), env.choice(op));
                let (y, dims) = self.attention(op, &states, &q, &self.dims(value("q")), seen)?;
                Ok(vec![Value::F32 { dims, data: y }, Value::Token, Value::Token])
            }
            OpKind::RouteListed => {
                let (dims, table) = (self.dims(value("logits")), weight(op, "table"));
                let (bytes, k) = (self.bytes(table)?, self.weight_dims(table)[1]);
                let listed: Vec<i32> = bytes.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect();
                let rows = ints(value("ids")).iter().map(|&id| {
                    let row = index(mnemonic, "id", id, listed.len() / k)?;
                    Ok(&listed[row * k..][..k])
                });
                let rows = rows.collect::<Result<Vec<_>, InterpretError>>()?;
                let (ids, weights) = math::route_listed(
                    &f32s(self, "logits")?,
                    dims[1],
                    &rows,
                    &RouteAttrs {
                        top_k: k as u64,
                        score: RouteScore::from_word(op.attr("score").word()).unwrap_or(RouteScore::Softmax),
                        groups: 1,
                        groups_kept: 1,
                        group_best: 0,
                        normalise: op.attr("normalise").bool(),
                        scale: op.attr("scale").float(),
                    },
                );
                let dims = vec![dims[0], k];
                Ok(vec![Value::I32 { dims: dims.clone(), data: ids }, Value::F32 { dims, data: weights }])
            }
            OpKind::ExpertGroups => {
                let size = op.attr("size").int() as i32;
                let data = ints(value("ids")).iter().map(|id| id.div_euclid(size)).collect();
                Ok(vec![Value::I32 { dims: self.dims(value("ids")), data }])
            }
            OpKind::RouteGiven => {
                let (dims, experts) = (self.dims(value("ids")), op.attr("experts").int().unsigned_abs() as usize);
                let (mut ids, mut p) = (ints(value("ids")).to_vec(), f32s(self, "p")?.into_owned());
                for (ids, p) in ids.chunks_exact_mut(dims[1]).zip(p.chunks_exact_mut(dims[1])) {
                    let first = ids.iter().copied().find(|&id| id != NOBODY).unwrap_or(0);
                    for (id, p) in ids.iter_mut().zip(p) {
                        if *id == NOBODY {
                            (*id, *p) = (first, 0.0);
                        }
                        index(mnemonic, "expert", *id, experts)?;
                    }
                }
                Ok(vec![Value::I32 { dims: dims.clone(), data: ids }, Value::F32 { dims, data: p }])
            }
            OpKind::RouteIdentities => {
                let (dims, experts) = (self.dims(value("ids")), op.attr("experts").int());
                let (mut ids, mut p) = (ints(value("ids")).to_vec(), f32s(self, "p")?.into_owned());
                let mut passed = Vec::with_capacity(dims[0]);
                for (ids, p) in ids.chunks_exact_mut(dims[1]).zip(p.chunks_exact_mut(dims[1])) {
                    let is_own = |id: i32| i64::from(id) < experts;
                    let first = ids.iter().copied().find(|&id| is_own(id)).unwrap_or(0);
                    let mut sum = 0.0;
                    for (id, p) in ids.iter_mut().zip(p).filter(|(id, _)| !is_own(**id)) {
                        sum += f64::from(*p);
                        (*id, *p) = (first, 0.0);
                    }
                    passed.push(sum as f32);
                }
                let rows = vec![dims[0], 1];
                let of_slots = [Value::I32 { dims: dims.clone(), data: ids }, Value::F32 { dims, data: p }];
                Ok(of_slots.into_iter().chain([Value::F32 { dims: rows, data: passed }]).collect())
            }
            OpKind::StreamWeights => {
                let (scale, base) = (self.dequantised(weight(op, "scale"))?, self.dequantised(weight(op, "base"))?);
                let (n, iterations) = (op.attr("streams").int() as usize, op.attr("iterations").int());
                let x = f32s(self, "x")?;
                let [eps, magnitude] = ["eps", "magnitude"].map(|attr| op.attr(attr).float());
                let y = streams::weights(&x, [&scale, &base], n, (iterations, eps, magnitude));
                one(self.dims(value("x")), y)
            }
            OpKind::StreamInput => {
                let (dims, of_row) = (self.dims(value("x")), self.dims(value("w"))[1]);
                let y = streams::input(&f32s(self, "x")?, &f32s(self, "w")?, [dims[1], dims[2], of_row]);
                one(vec![dims[0], dims[2]], y)
            }
            OpKind::StreamMix => {
                let (dims, of_row) = (self.dims(value("x")), self.dims(value("w"))[1]);
                let (x, y, w) = (f32s(self, "x")?, f32s(self, "y")?, f32s(self, "w")?);
                one(dims.clone(), streams::mix(&x, &y, &w, [dims[1], dims[2], of_row]))
            }
            OpKind::StreamAttend => {
                let dims = self.dims(value("x"));
                let (x, y, w) = (f32s(self, "x")?, f32s(self, "y")?, self.dequantised(weight(op, "w"))?);
                one(vec![dims[0], dims[2]], streams::attend(&x, &y, &w, [dims[1], dims[2]], op.attr("eps").float()))
            }
            OpKind::TakeRows => {
                let (x, dims, rows) = (f32s(self, "x")?, self.dims(value("x")), ints(value("rows")));
                let mut data = Vec::with_capacity(rows.len() * dims[1]);
                for &row in rows {
                    let row = index(mnemonic, "row", row, dims[0])?;
                    data.extend_from_slice(&x[row * dims[1]..][..dims[1]]);
                }
                one(vec![rows.len(), dims[1]], data)
            }
            OpKind::Quantise => Ok(vec![quantised(op, self.dims(value("x")), &f32s(self, "x")?)]),
            OpKind::RmsNormQuantise => {
                let y = self.rms_norm(op, env)?;
                Ok(vec![quantised(op, self.dims(value("x")), &y)])
            }
            OpKind::Linear => {
                let mut y = self.linear(&f32s(self, "x")?, op.operand("w"), op.operand("bias"))?;
                if let Operand::Value(residual) = op.operand("residual") {
                    y = add(&y, &self.floats(env.get(residual))?);
                }
                let n = self.weight_dims(weight(op, "w"))[0];
                one(vec![y.len() / n, n], y)
            }
            OpKind::LinearQkv => {
                let mut results = Vec::with_capacity(3);
                for (x, w, bias) in [("xq", "wq", "bq"), ("xk", "wk", "bk"), ("xv", "wv", "bv")] {
                    let y = self.linear(&f32s(self, x)?, op.operand(w), op.operand(bias))?;
                    let n = self.weight_dims(weight(op, w))[0];
                    results.push(Value::F32 { dims: vec![y.len() / n, n], data: y });
                }
                Ok(results)
            }
            OpKind::LinearSwiglu => {
                let x = f32s(self, "x")?;
                let gate = self.linear(&x, op.operand("gate"), op.operand("gate_bias"))?;
                let up = self.linear(&x, op.operand("up"), op.operand("up_bias"))?;
                let n = self.weight_dims(weight(op, "gate"))[0];
                let y = math::gated(&gate, &up, &GateAttrs::from_op(op));
                Ok(vec![quantised(op, vec![gate.len() / n, n], &y)])
            }
            OpKind::RopeHeads => {
                let dims = self.dims(value("x"));
                let heads = op.attr("heads").int() as usize;
                let y = self.rope_heads(op, &f32s(self, "x")?, heads, dims[1] / heads, ints(value("pos")))?;
                one(vec![dims[0], heads, dims[1] / heads], y)
            }
            OpKind::RopeAppend => {
                let heads = op.attr("heads").int() as usize;
                let key = self.dims(value("k"))[1] / heads;
                let pos = ints(value("pos"));
                let k = self.rope_heads(op, &f32s(self, "k")?, heads, key, pos)?;
                let v = f32s(self, "v")?.into_owned();
                self.append(op, env.state(op, "kv"), &k, &v, pos)?;
                Ok(vec![Value::Token])
            }
            OpKind::ExpertSwiglu => {
                let (x, ids) = (f32s(self, "x")?, value("ids"));
                let dims = self.dims(ids);
                let project = |w: &str, bias: &str| -> Result<(Vec<f32>, usize), InterpretError> {
                    let (y, n) = self.experts(mnemonic, weight(op, w), &x, ints(ids), dims[1])?;
                    match op.operand(bias) {
                        Operand::Weight(bias) => Ok((self.add_expert_bias(mnemonic, &y, ints(ids), bias)?, n)),
                        Operand::Value(_) | Operand::State(_) | Operand::Absent => Ok((y, n)),
                    }
                };
                let ((gate, n), (up, _)) = (project("gate", "gate_bias")?, project("up", "up_bias")?);
                let y = math::gated(&gate, &up, &GateAttrs::from_op(op));
                Ok(vec![quantised(op, with_new(&dims, n), &y)])
            }
            OpKind::ExpertDown => {
                let (x, ids) = (f32s(self, "x")?, value("ids"));
                let dims = self.dims(ids);
                let (mut y, n) = self.experts(mnemonic, weight(op, "w"), &x, ints(ids), dims[1])?;
                if let Operand::Weight(bias) = op.operand("bias") {
                    y = self.add_expert_bias(mnemonic, &y, ints(ids), bias)?;
                }
                let mut y = combine(&y, &f32s(self, "p")?, dims[1], n);
                if let Operand::Value(residual) = op.operand("residual") {
                    y = add(&y, &self.floats(env.get(residual))?);
                }
                one(vec![dims[0], n], y)
            }
            OpKind::ExpertSplit => {
                let (p, dims, now) = (f32s(self, "p")?, self.dims(value("ids")), op.attr("now").int() as usize);
                let part = |from: usize, to: usize| {
                    let ids =
                        ints(value("ids")).chunks_exact(dims[1]).flat_map(|row| &row[from..to]).copied().collect();
                    let p = p.chunks_exact(dims[1]).flat_map(|row| &row[from..to]).copied().collect();
                    let dims = vec![dims[0], to - from];
                    [Value::I32 { dims: dims.clone(), data: ids }, Value::F32 { dims, data: p }]
                };
                Ok([part(0, now), part(now, dims[1])].concat())
            }
            // The time at which weights are loaded does not change their values.
            OpKind::StateBegin | OpKind::ExpertSlots | OpKind::ExpertPrefetch | OpKind::ExpertEvict => {
                Ok(vec![Value::Token])
            }
            OpKind::ExpertWait => Ok(vec![value("ids").clone(), Value::Token]),
        }
    }

    /// Returns a tensor's elements as f32, with blocks and weights dequantised.
    fn floats<'v>(&self, value: &'v Value) -> Result<Cow<'v, [f32]>, InterpretError> {
        match value {
            Value::F32 { data, .. } => Ok(Cow::Borrowed(data)),
            Value::Blocks { format, dims, bytes } => {
                Ok(Cow::Owned(format.dequantise_rows(bytes, dims.last().copied().unwrap_or(1))))
            }
            Value::Weight(weight) => Ok(Cow::Owned(self.dequantised(*weight)?)),
            Value::I32 { .. } | Value::Token => unreachable!("verified: {value:?} is no floats"),
        }
    }

    fn dims(&self, value: &Value) -> Vec<usize> {
        match value {
            Value::F32 { dims, .. } | Value::I32 { dims, .. } | Value::Blocks { dims, .. } => dims.clone(),
            Value::Weight(weight) => self.weight_dims(*weight),
            Value::Token => unreachable!("verified: a token has no dimensions"),
        }
    }

    fn weight_dims(&self, weight: WeightId) -> Vec<usize> {
        self.module.weights[weight.index()].shape.iter().map(|&n| n as usize).collect()
    }

    /// Returns a weight's bytes, which must have the length of its shape.
    fn bytes(&self, weight: WeightId) -> Result<Cow<'a, [u8]>, InterpretError> {
        let declared = &self.module.weights[weight.index()];
        let bytes = self
            .weights
            .bytes(weight)
            .map_err(|source| InterpretError::Weight { name: declared.name.clone(), source })?;
        let (last, lead) = declared.shape.split_last().unwrap_or((&1, &[]));
        let stored = declared.stored();
        let expected = stored.row_bytes(*last).unwrap_or(0) * lead.iter().product::<u64>();
        if bytes.len() as u64 != expected {
            return Err(InterpretError::WeightBytes { name: declared.name.clone(), expected, found: bytes.len() });
        }
        match declared.format {
            format if format == stored => Ok(bytes),
            format => Ok(requantise(stored, format, &bytes, *last as usize).into()),
        }
    }

    fn matrix<'b>(&self, weight: WeightId, bytes: &'b [u8]) -> Matrix<'b> {
        let weight = &self.module.weights[weight.index()];
        Matrix { format: weight.format, bytes, width: weight.shape.last().map_or(1, |&n| n as usize) }
    }

    fn dequantised(&self, weight: WeightId) -> Result<Vec<f32>, InterpretError> {
        Ok(self.matrix(weight, &self.bytes(weight)?).dequantise())
    }

    /// Computes `rms_norm` of the op's rows. If the weight has a row for each head, the heads of a
    /// row are normed together.
    fn rms_norm(&self, op: &Op, env: &Env<'_>) -> Result<Vec<f32>, InterpretError> {
        let x = env.get(operand_value(op, "x"));
        let n = self.dims(x).last().copied().unwrap_or(1);
        let w = self.optional(op.operand("w"))?.unwrap_or_else(|| vec![1.0; n]);
        Ok(math::rms_norm(&self.floats(x)?, &w, n, op.attr("eps").float()))
    }

    fn optional(&self, operand: Operand) -> Result<Option<Vec<f32>>, InterpretError> {
        match operand {
            Operand::Weight(weight) => self.dequantised(weight).map(Some),
            Operand::Absent => Ok(None),
            other @ (Operand::Value(_) | Operand::State(_)) => unreachable!("verified: {other:?} is no weight"),
        }
    }

    fn recurrent(&mut self, op: &Op, kind: Recurrent, env: &Env<'_>) -> Result<Vec<Value>, InterpretError> {
        let (mut rows, mut positions) = (0, Vec::new());
        let mut operands = Vec::with_capacity(op.operands.len());
        for operand in &op.operands {
            operands.push(match operand {
                Operand::Value(value) if env.function.ty(*value).is_token() => Vec::new(),
                Operand::Value(value) if matches!(env.get(*value), Value::I32 { .. }) => {
                    positions = ints(env.get(*value)).to_vec();
                    Vec::new()
                }
                Operand::Value(value) => {
                    let value = env.get(*value);
                    rows = self.dims(value)[0];
                    self.floats(value)?.into_owned()
                }
                Operand::Weight(weight) => self.dequantised(*weight)?,
                Operand::State(_) | Operand::Absent => Vec::new(),
            });
        }
        let declared = env.function.ty(op.results[0]).dims().iter();
        let inner: Vec<usize> = declared.skip(1).map(|dim| dim.fixed().unwrap_or(1) as usize).collect();
        let width = inner.iter().product();
        let [state] = &mut self.states[env.state(op, "state").index()][..] else {
            unreachable!("verified: a recurrent state has one field")
        };
        let data = recurrent::run(op, kind, (&operands, &positions), rows, state, width);
        let dims = std::iter::once(rows).chain(inner).collect();
        Ok(vec![Value::F32 { dims, data }, Value::Token])
    }
}

struct Env<'a> {
    function: &'a Function,
    values: Vec<Option<Value>>,
}

impl Env<'_> {
    /// Returns the state that an op touches, by its token.
    fn state(&self, op: &Op, token: &str) -> StateId {
        match self.function.ty(operand_value(op, token)) {
            Type::Token(Held::State(state)) => *state,
            other => unreachable!("verified: {other} is no token of a state"),
        }
    }

    /// Returns the dimensions and places of the lists that restrict an op's rows, if there are any.
    fn choice(&self, op: &Op) -> Option<Lists<'_>> {
        match op.operand("chosen") {
            Operand::Value(chosen) => match self.get(chosen) {
                Value::I32 { dims, data } => Some((dims, data)),
                other => unreachable!("verified: {other:?} is no choice"),
            },
            Operand::Weight(_) | Operand::State(_) | Operand::Absent => None,
        }
    }

    fn get(&self, id: ValueId) -> &Value {
        match &self.values[id.index()] {
            Some(value) => value,
            None => unreachable!("verified: {} is defined before it is used", self.function.label(id)),
        }
    }
}

fn operand_value(op: &Op, name: &str) -> ValueId {
    match op.operand(name) {
        Operand::Value(value) => value,
        other => unreachable!("verified: operand {name} is {other:?}"),
    }
}

fn weight(op: &Op, name: &str) -> WeightId {
    match op.operand(name) {
        Operand::Weight(weight) => weight,
        other => unreachable!("verified: operand {name} is {other:?}"),
    }
}

/// Adds the squares of rows, `[T, k]` or `[T, s, k]`, to the sums of their experts, and 1 to their
/// counts: `[e, k + 1]`.
fn column_squares(sums: &mut [f32], x: &[f32], dims: &[usize], ids: Option<&[i32]>) -> Result<(), InterpretError> {
    let columns = dims[dims.len() - 1];
    let (width, rows) = (columns + 1, dims[0]);
    let slots = ids.map_or(1, |ids| ids.len() / rows.max(1));
    for at in 0..rows * slots {
        let expert = match ids {
            Some(ids) => index("column.squares", "expert", ids[at], sums.len() / width)?,
            None => 0,
        };
        let row = if dims.len() == 3 { at } else { at / slots };
        let (squares, count) = sums[expert * width..][..width].split_at_mut(columns);
        for (sum, &x) in squares.iter_mut().zip(&x[row * columns..]) {
            *sum = f64::from(x).mul_add(f64::from(x), f64::from(*sum)) as f32;
        }
        count[0] += 1.0;
    }
    Ok(())
}

fn ints(value: &Value) -> &[i32] {
    match value {
        Value::I32 { data, .. } => data,
        other => unreachable!("verified: {other:?} is no i32"),
    }
}

fn index(op: &'static str, what: &'static str, found: i32, bound: usize) -> Result<usize, InterpretError> {
    match usize::try_from(found) {
        Ok(i) if i < bound => Ok(i),
        Ok(_) | Err(_) => Err(InterpretError::Index { op, what, found: i64::from(found), bound }),
    }
}

/// Returns `dims` with another last dimension.
fn with(dims: &[usize], last: usize) -> Vec<usize> {
    let lead = dims.len().saturating_sub(1);
    with_new(&dims[..lead], last)
}

/// Returns `dims` with one more dimension.
fn with_new(dims: &[usize], last: usize) -> Vec<usize> {
    dims.iter().copied().chain([last]).collect()
}

fn add(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

fn mul(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a * b).collect()
}

/// Multiplies parts of `d` elements by their own numbers and adds `residual`.
fn scale_heads(x: &[f32], s: &[f32], d: usize, residual: Option<&[f32]>) -> Vec<f32> {
    let scaled = x.iter().enumerate().map(|(i, &x)| f64::from(x) * f64::from(s[i / d]));
    match residual {
        Some(residual) => scaled.zip(residual).map(|(y, &r)| (y + f64::from(r)) as f32).collect(),
        None => scaled.map(|y| y as f32).collect(),
    }
}

fn add_bias(x: &[f32], bias: &[f32]) -> Vec<f32> {
    x.iter().zip(bias.iter().cycle()).map(|(x, b)| x + b).collect()
}

/// Returns `x` in the format of the attribute `format`.
fn quantised(op: &Op, dims: Vec<usize>, x: &[f32]) -> Value {
    match op.attr("format").format() {
        Format::F32 => Value::F32 { dims, data: x.to_vec() },
        format => {
            let bytes = quantise_rows(format, x, dims.last().copied().unwrap_or(1));
            Value::Blocks { format, dims, bytes }
        }
    }
}
