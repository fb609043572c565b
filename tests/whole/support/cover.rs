//! Cover of golden models: a few models whose plans together have all features of all plans.
//! `IXC_ALL=1` selects all models instead, as for a release.
//!
//! The features of a model on a target are:
//! - each kernel spec, in which each number is replaced by its kind: none, 0, 1 or more;
//! - each source of an argument of a task, and each kind of step;
//! - each op of the graph after all passes, with its attributes; numbers in them are replaced in
//!   the same way.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ixc::compile::{CompileOptions, specs};
use ixc::ir::graph::{Attr, Op};
use ixc::ir::plan::{Source, Step};
use ixc::kernels::KernelSpec;
use ixc::model::Model;
use ixc::targets::Target;
use ixc_testing::bless;

use super::Golden;

type Features = Arc<BTreeSet<String>>;

/// Returns whether tests run all models. This is also so if tables of checksums are rewritten.
pub fn runs_all() -> bool {
    std::env::var_os("IXC_ALL").is_some() || bless::is_asked_for()
}

/// Returns the models of a cover of `models` on a target, in the order of `models`.
///
/// # Panics
/// If a model does not compile.
pub fn cover(models: &[Golden], target: Target) -> Vec<&Golden> {
    cover_on(models, &[target]).into_iter().map(|(model, _)| model).collect()
}

/// Returns pairs of a model and a target that cover all features. A feature that occurs on several
/// targets is covered on one of them, and models alternate between targets. This is for tests of
/// code that is the same for all targets.
///
/// # Panics
/// If a model does not compile.
pub fn cover_on<'m>(models: &'m [Golden], targets: &[Target]) -> Vec<(&'m Golden, Target)> {
    let count = targets.len();
    let pairs = models.iter().enumerate().flat_map(|(number, model)| {
        // The targets of a model begin one after the first target of the previous model.
        (0..count).map(move |turn| (model, targets[(number + turn) % count]))
    });
    let pairs: Vec<_> = pairs.collect();
    if runs_all() {
        return pairs;
    }
    let features: Vec<Features> = pairs.iter().map(|(model, target)| features_of(model, *target)).collect();
    let mut missing: BTreeSet<&String> = features.iter().flat_map(|features| features.iter()).collect();
    let all = missing.len();
    let mut selected = BTreeSet::new();
    while !missing.is_empty() {
        let gain = |number: &usize| features[*number].iter().filter(|feature| missing.contains(feature)).count();
        // If several pairs add the same number of features, the first of these pairs is taken.
        let best = (0..pairs.len()).rev().max_by_key(gain).unwrap();
        missing.retain(|feature| !features[best].contains(*feature));
        assert!(selected.insert(best), "a model that adds nothing");
    }
    let (runs, left_out) = (selected.len(), pairs.len() - selected.len());
    let names: Vec<&str> = targets.iter().map(|target| target.name()).collect();
    let names = names.join(" and ");
    println!("cover on {names}: {runs} of {} runs have all {all} features", pairs.len());
    if left_out > 0 {
        println!("LEFT OUT: golden models on {names} whose features others have; IXC_ALL=1 runs all");
    }
    selected.into_iter().map(|number| pairs[number]).collect()
}

/// Returns the features of a model's plan. They are computed once for all tests.
fn features_of(golden: &Golden, target: Target) -> Features {
    type Known = BTreeMap<(PathBuf, &'static str), Arc<OnceLock<Features>>>;
    static KNOWN: Mutex<Known> = Mutex::new(BTreeMap::new());
    let key = (golden.model.clone(), target.name());
    // If one test fails to compile the model, the next test tries again.
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let own = known.entry(key).or_default().clone();
    drop(known);
    let find = || {
        let options = CompileOptions { target: Some(target), ..CompileOptions::default() };
        let model = Model::open(&golden.model).unwrap();
        let (module, plan) = specs(&model, &options).unwrap_or_else(|error| panic!("{}: {error}", golden.name()));
        let ops = module.functions.iter().flat_map(|function| &function.ops).map(of_op);
        let features = ops.chain(plan.kernels.iter().map(of_spec)).chain(plan.steps.iter().flat_map(of_step));
        Features::new(features.collect())
    };
    own.get_or_init(find).clone()
}

fn of_op(op: &Op) -> String {
    let row = op.kind.row();
    let attributes = row.attrs.iter().zip(&op.attrs).map(|(attribute, value)| {
        let value = match value {
            Attr::Int(value) => kind_of(*value as f64).to_owned(),
            Attr::Float(value) => kind_of(f64::from(*value)).to_owned(),
            Attr::Bool(value) => value.to_string(),
            Attr::Word(word) => word.clone(),
            Attr::Format(format) => format.name().to_owned(),
        };
        format!(" {}={value}", attribute.name)
    });
    format!("op {}{}", row.mnemonic, attributes.collect::<String>())
}

fn of_spec(spec: &KernelSpec) -> String {
    let text = spec.to_string();
    let words = text.split(' ').map(|word| match word.split_once('=') {
        Some((name, value)) => match value.parse() {
            Ok(number) => format!(" {name}={}", kind_of(number)),
            Err(_) => format!(" {word}"),
        },
        None => format!(" {word}"),
    });
    format!("kernel{}", words.collect::<String>())
}

fn of_step(step: &Step) -> Vec<String> {
    let word = |value: &dyn std::fmt::Debug| {
        let text = format!("{value:?}");
        text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
    };
    let mut found = vec![format!("step {}", word(step))];
    if let Step::Run { tasks, .. } = step {
        for task in tasks {
            let mut add = |what: String| found.push(format!("rows {} {what}", word(&task.rows)));
            add(format!("variants {}", task.variants.len()));
            for arg in &task.args {
                match arg.source {
                    Source::Input(input) => add(format!("input {}", word(&input))),
                    source => add(format!("source {}", word(&source))),
                }
            }
        }
    }
    found
}

/// Returns the kind of a number: its sign, and whether it is 0 or 1.
fn kind_of(value: f64) -> &'static str {
    match value {
        0.0 => "0",
        1.0 => "1",
        value if value < 0.0 => "negative",
        _ => "n",
    }
}
