//! The reference interpreter: the definition of every op.
//!
//! Values are f32. Within an op, all sums are in f64 and are rounded once, in the op's result.
//! Weights are dequantised with the format table. A fused op is defined as the sequence of ops that
//! it replaces, rounding included. Its quantised activations are dequantised and multiplied
//! exactly, so a kernel may differ only in the order of its sums.
//!
//! Each family of ops has a file of definitions. RoPE, routing and attention are in [`math`],
//! quantisation is in [`super::quantise`]. States are f32. If a state is declared in a quantised
//! block format, each appended row is rounded to that format ([`crate::cache`]).
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
mod call;
mod elementwise;
mod experts;
pub mod math;
mod norms;
mod positions;
mod products;
pub mod ranks;
mod recurrent;
mod routes;
mod rows;
mod streams;
mod value;

pub use value::{InterpretError, SourceError, Value, WeightSource};

use std::borrow::Cow;
use std::collections::HashMap;

use self::call::{Call, Env};
use self::math::Matrix;
use super::op::OpKind;
use super::verify::verify;
use super::{Dim, Element, Field, Module, Op, State, Type, WeightId};
use crate::format::Format;
use crate::format::requantise::requantise;

/// Interpreter of a module, with the current contents of its states.
pub struct Interpreter<'a> {
    module: &'a Module,
    weights: &'a dyn WeightSource,
    /// Elements of each field of each state. Fields with positions are stored as
    /// `[position][column][element]`, for the positions so far.
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
    /// interpreter does not check the maximum; it only uses it to select between the two sets of
    /// RoPE divisors that some models have.
    #[must_use]
    pub fn with_context(self, context: u64) -> Interpreter<'a> {
        Interpreter { context, ..self }
    }

    /// Empties all states, so that the next step starts a new sequence.
    pub fn reset(&mut self) {
        self.states = self.module.states.iter().map(empty).collect();
    }

    /// Runs one step of a model and returns the logits of `rows`, row-major. States are kept for
    /// the next step.
    ///
    /// # Errors
    /// See [`Interpreter::run`].
    pub fn step(&mut self, tokens: &[u32], positions: &[u32], rows: &[u32]) -> Result<Vec<f32>, InterpretError> {
        match self.run("step", step_arguments(tokens, positions, rows)?)?.into_iter().next() {
            Some(Value::F32 { data, .. }) => Ok(data),
            Some(_) | None => Err(InterpretError::NoFunction { name: "step whose first result is logits".to_string() }),
        }
    }

    /// Evaluates a function.
    ///
    /// # Errors
    /// Fails if arguments do not fit the parameters, a weight cannot be read, or an id, row or
    /// position is out of range.
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
            env.set(op, results);
        }
        self.results(&env)
    }

    /// Returns the results of a function after all its ops were evaluated.
    fn results(&self, env: &Env<'_>) -> Result<Vec<Value>, InterpretError> {
        let function = env.function;
        let mut results = Vec::with_capacity(function.results.len());
        for &id in &function.results {
            results.push(match env.get(id) {
                Value::Weight(weight) => {
                    let data = self.dequantise(*weight)?;
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

    /// Evaluates one op and returns its results.
    fn eval(&mut self, op: &Op, env: &Env<'_>) -> Result<Vec<Value>, InterpretError> {
        let call = &mut Call { interpreter: self, op, env };
        match op.kind {
            OpKind::Embed => rows::embed(call),
            OpKind::Dequantise => products::dequantise(call),
            OpKind::Matmul => products::matmul(call),
            OpKind::Add => elementwise::add(call),
            OpKind::AddBias => elementwise::add_bias(call),
            OpKind::Mul => elementwise::mul(call),
            OpKind::Gated => elementwise::gated(call),
            OpKind::ScaleHeads => elementwise::scale_heads(call),
            OpKind::Unary(function) => elementwise::unary(call, function),
            OpKind::RmsNorm => norms::rms_norm(call),
            OpKind::SplitHeads => rows::split_heads(call),
            OpKind::MergeHeads => rows::merge_heads(call),
            OpKind::Slice => rows::slice(call),
            OpKind::Concat => rows::concat(call),
            OpKind::Rope => positions::rope(call),
            OpKind::Temperature => positions::temperature(call),
            OpKind::HeadsTemperature => positions::heads_temperature(call),
            OpKind::Centre => norms::centre(call),
            OpKind::HeadsSum => rows::heads_sum(call),
            OpKind::Ngram => recurrent::ngram(call),
            OpKind::Recurrent(kind) => recurrent::recurrent(call, kind),
            OpKind::ColumnSquares => recurrent::column_squares(call),
            OpKind::KvAppend => attention::kv_append(call),
            OpKind::IndexTopK => attention::index_top_k(call),
            OpKind::Attention => attention::attention(call),
            OpKind::HeadsMatmul => products::heads_matmul(call),
            OpKind::LinearHeads => products::linear_heads(call),
            OpKind::Route => routes::route(call),
            OpKind::ExpertMatmul => experts::expert_matmul(call),
            OpKind::ExpertAddBias => experts::expert_add_bias(call),
            OpKind::ExpertScale => experts::expert_scale(call),
            OpKind::ExpertCombine => experts::expert_combine(call),
            OpKind::Positions => positions::positions(call),
            OpKind::Ends => positions::ends(call),
            OpKind::AttentionEntries => attention::attention_entries(call),
            OpKind::RouteListed => routes::route_listed(call),
            OpKind::ExpertGroups => routes::expert_groups(call),
            OpKind::RouteGiven => routes::route_given(call),
            OpKind::RouteIdentities => routes::route_identities(call),
            OpKind::StreamWeights => streams::stream_weights(call),
            OpKind::StreamInput => streams::stream_input(call),
            OpKind::StreamMix => streams::stream_mix(call),
            OpKind::StreamAttend => streams::stream_attend(call),
            OpKind::TakeRows => rows::take_rows(call),
            OpKind::Quantise => norms::quantise(call),
            OpKind::RmsNormQuantise => norms::rms_norm_quantise(call),
            OpKind::Linear => products::linear(call),
            OpKind::LinearQkv => products::linear_qkv(call),
            OpKind::LinearSwiglu => products::linear_swiglu(call),
            OpKind::RopeHeads => positions::rope_heads(call),
            OpKind::RopeAppend => attention::rope_append(call),
            OpKind::ExpertSwiglu => experts::expert_swiglu(call),
            OpKind::ExpertDown => experts::expert_down(call),
            OpKind::ExpertSplit => routes::expert_split(call),
            // These ops compute nothing: when weights are loaded does not change their values.
            OpKind::StateBegin | OpKind::ExpertSlots | OpKind::ExpertPrefetch | OpKind::ExpertEvict => {
                Ok(vec![Value::Token])
            }
            OpKind::ExpertWait => Ok(vec![call.value("ids").clone(), Value::Token]),
            OpKind::RanksBegin => Ok(vec![Value::Token]),
            OpKind::AllReduce | OpKind::AllGather | OpKind::Send | OpKind::Recv => ranks::single_rank(call),
            OpKind::RouteOwned => routes::route_owned(call),
        }
    }

    /// Returns a tensor's elements as f32. Quantised activations and weights are dequantised.
    fn floats<'v>(&self, value: &'v Value) -> Result<Cow<'v, [f32]>, InterpretError> {
        match value {
            Value::F32 { data, .. } => Ok(Cow::Borrowed(data)),
            Value::Blocks { format, dims, bytes } => {
                Ok(Cow::Owned(format.dequantise_rows(bytes, dims.last().copied().unwrap_or(1))))
            }
            Value::Weight(weight) => Ok(Cow::Owned(self.dequantise(*weight)?)),
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

    /// Returns a weight's bytes. Fails if their number does not match the weight's shape.
    fn bytes(&self, weight: WeightId) -> Result<Cow<'a, [u8]>, InterpretError> {
        let declared = &self.module.weights[weight.index()];
        let bytes = self
            .weights
            .bytes(weight)
            .map_err(|source| InterpretError::Weight { name: declared.name.clone(), source })?;
        let (last, lead) = declared.shape.split_last().unwrap_or((&1, &[]));
        let stored = declared.stored_format();
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

    fn dequantise(&self, weight: WeightId) -> Result<Vec<f32>, InterpretError> {
        Ok(self.matrix(weight, &self.bytes(weight)?).dequantise())
    }
}

/// Returns the arguments of `@step`.
fn step_arguments(tokens: &[u32], positions: &[u32], rows: &[u32]) -> Result<Vec<Value>, InterpretError> {
    let i32s = |name: &str, data: &[u32]| {
        let wide = |_| InterpretError::Argument {
            name: format!("%{name}"),
            found: "a number outside i32".to_string(),
            expected: "in the range of i32".to_string(),
        };
        let ints: Result<Vec<i32>, _> = data.iter().map(|&n| i32::try_from(n)).collect();
        Ok::<Value, InterpretError>(Value::I32 { dims: vec![data.len()], data: ints.map_err(wide)? })
    };
    Ok(vec![i32s("ids", tokens)?, i32s("pos", positions)?, i32s("rows", rows)?])
}

fn index(op: &'static str, what: &'static str, found: i32, bound: usize) -> Result<usize, InterpretError> {
    match usize::try_from(found) {
        Ok(i) if i < bound => Ok(i),
        Ok(_) | Err(_) => Err(InterpretError::Index { op, what, found: i64::from(found), bound }),
    }
}

/// Returns the result list of an op with a single f32 tensor.
fn one(dims: Vec<usize>, data: Vec<f32>) -> Result<Vec<Value>, InterpretError> {
    Ok(vec![Value::F32 { dims, data }])
}

/// Returns `dims` with the last dimension replaced.
fn with(dims: &[usize], last: usize) -> Vec<usize> {
    let lead = dims.len().saturating_sub(1);
    with_new(&dims[..lead], last)
}

/// Returns `dims` with one more dimension at the end.
fn with_new(dims: &[usize], last: usize) -> Vec<usize> {
    dims.iter().copied().chain([last]).collect()
}
